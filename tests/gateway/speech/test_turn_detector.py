"""Where turns begin and end."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest

from baton_gateway.speech.turn_detector import (
    SpeechAudio,
    SpeechEnd,
    SpeechStart,
    TurnDetector,
    TurnPart,
    levels,
)

RATE = 8000


def tone(seconds: float, level: float) -> npt.NDArray[np.int16]:
    """Of a level in dB of the loudest one."""
    phase = 2 * np.pi * 400 * np.arange(round(seconds * RATE)) / RATE
    sine: npt.NDArray[np.int16] = (32767 * 10 ** (level / 20) * np.sin(phase)).astype("<i2")
    return sine


def turns(parts: Iterable[TurnPart]) -> list[tuple[int, int, bytes]]:
    """Beginning, end and audio of each; -1: it has not ended."""
    found = list[tuple[int, int, bytes]]()
    for part in parts:
        match part:
            case SpeechStart(ms, data):
                found.append((ms, -1, data))
            case SpeechAudio(data):
                found[-1] = (*found[-1][:2], found[-1][2] + data)
            case SpeechEnd(ms):
                found[-1] = (found[-1][0], ms, found[-1][2])
    return found


@pytest.mark.row("F18.20")
def test_turns_are_what_stands_out() -> None:
    """With what belongs to them before and behind, however the audio comes; the second goes on."""
    quiet, loud = tone(1.0, -66), tone(0.5, -20)
    sound = np.concatenate((quiet, loud, quiet, loud, tone(0.1, -66), loud))
    for size in (4, 1000, 10**6):
        detector = TurnDetector(RATE, 0.5, 200, 400, begin_ms=5000)
        data = sound.tobytes()
        parts = [
            part for at in range(0, len(data), size) for part in detector.hear(data[at : at + size])
        ]
        first, second = turns(parts)
        assert first[:2] == (5800, 6900) and second[:2] == (7300, -1)
        for start, end, audio in ((800, 1900, first[2]), (2300, 3600, second[2])):
            assert audio == sound[start * RATE // 1000 : end * RATE // 1000].tobytes()
        assert detector.speaking and detector.stop() == b"" and not detector.speaking
        assert turns(detector.hear(quiet.tobytes())) == []


def test_noise_that_does_not_change_is_none() -> None:
    """After the seconds in which it is learnt; what is louder than it is speech, by as much as the
    threshold says."""
    begins = np.concatenate((tone(1.0, -66), tone(4.0, -40)))
    [(start, end, _)] = turns(TurnDetector(RATE, 0.5, 0, 100).hear(begins.tobytes()))
    assert (start, 4000 < end < 4200) == (1000, True)
    assert turns(TurnDetector(RATE, 0.5, 0, 100).hear(tone(4.0, -40).tobytes())) == []
    for level, threshold, heard in ((-30, 0.5, False), (-20, 0.5, True), (-30, 0.3, True)):
        detector = TurnDetector(RATE, threshold, 0, 100)
        turns(detector.hear(tone(4.0, -40).tobytes()))
        assert bool(turns(detector.hear(tone(0.3, level).tobytes()))) is heard
    click = np.concatenate((tone(1.0, -66), tone(0.04, -10), tone(1.0, -66)))
    assert turns(TurnDetector(RATE, 0.5, 300, 500).hear(click.tobytes())) == []


def test_levels_and_a_rest() -> None:
    data = np.concatenate((np.zeros(160, "<i2"), np.full(160, -32768, "<i2"))).tobytes()
    assert levels(data, 320).tolist() == pytest.approx([-120.0, 0.0])
    detector = TurnDetector(RATE, 0.0, 0, 500)
    parts = list(detector.hear(data * 3 + b"\1\2"))
    assert isinstance(parts[0], SpeechStart) and detector.stop() == b"\1\2"
