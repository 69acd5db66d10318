"""Turns of a speaker, by how loud they are against the noise behind them.

    level    ....'||||.|||||'...........||||
    turns        [prefix|  one      |silence]   [two

A frame is speech if it is louder than the quietest frame of the last seconds by a part of 30 dB
(minimum statistics, Martin 2001). So a detector knows loudness, not voices: any sound that stands
out is speech, and one that does not change for seconds is noise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FRAME_MS = 20
_ONSET_FRAMES = 3
"""Frames of speech in a row with which a turn begins."""
_NOISE_FRAMES = 150
"""Frames among which the quietest one is noise: 3 s."""
_LEAST_DB, _RANGE_DB = -60.0, 30.0
"""Noise is at least so loud, of the loudest sound; and speech of activity 1 so much louder."""
_FULL_SCALE = 32768.0


class SpeechStart(NamedTuple):
    """A turn begins."""

    ms: int
    """Where its audio does, from the beginning."""
    data: bytes
    """Samples of it."""


class SpeechAudio(NamedTuple):
    """A turn goes on."""

    data: bytes


class SpeechEnd(NamedTuple):
    """A turn has ended."""

    ms: int
    """Where its audio does."""


TurnPart = SpeechStart | SpeechAudio | SpeechEnd


class TurnDetector:
    """Life cycle: `hear` takes the audio as it comes.

    Args:
        rate: samples of 16 bits per second.
        threshold: activity from which a frame is speech, 0 to 1.
        prefix_ms: audio before a turn that belongs to it.
        silence_ms: time without speech that ends a turn, and belongs to it.
        begin_ms: where the audio begins.
    """

    def __init__(
        self, rate: int, threshold: float, prefix_ms: int, silence_ms: int, begin_ms: int = 0
    ) -> None:
        self.speaking = False
        self._frame_bytes = 2 * (rate * FRAME_MS // 1000)
        self._threshold, self._silence_ms, self._ms = threshold, silence_ms, begin_ms
        self._rest = bytearray()
        self._levels = deque[float](maxlen=_NOISE_FRAMES)
        self._before = deque[bytes](maxlen=-(-prefix_ms // FRAME_MS) + _ONSET_FRAMES)
        self._loud_frames = self._quiet_frames = 0

    def hear(self, data: bytes) -> Iterator[TurnPart]:
        """Yield what the next samples bring."""
        self._rest += data
        size = self._frame_bytes
        whole = bytes(self._rest[: len(self._rest) // size * size])
        del self._rest[: len(whole)]
        for number, level in enumerate(levels(whole, size)):
            self._ms += FRAME_MS
            frame = whole[number * size : (number + 1) * size]
            yield from self._goes_on(frame, level) if self.speaking else self._begins(frame, level)

    def stop(self) -> bytes:
        """End the turn here, if there is one; returns the samples that have not been given out of
        it."""
        rest = bytes(self._rest) if self.speaking else b""
        self._rest.clear()
        self._before.clear()
        self.speaking, self._loud_frames = False, 0
        return rest

    def _begins(self, frame: bytes, level: float) -> Iterator[TurnPart]:
        self._before.append(frame)
        self._loud_frames = self._loud_frames + 1 if self._is_speech(level) else 0
        if self._loud_frames >= _ONSET_FRAMES:
            self.speaking, self._quiet_frames = True, 0
            start = self._ms - FRAME_MS * len(self._before)
            yield SpeechStart(start, b"".join(self._before))
            self._before.clear()

    def _goes_on(self, frame: bytes, level: float) -> Iterator[TurnPart]:
        yield SpeechAudio(frame)
        self._quiet_frames = 0 if self._is_speech(level) else self._quiet_frames + 1
        if self._quiet_frames * FRAME_MS >= self._silence_ms:
            self.speaking, self._loud_frames = False, 0
            yield SpeechEnd(self._ms)

    def _is_speech(self, level: float) -> bool:
        self._levels.append(level)
        noise = max(_LEAST_DB, min(self._levels))
        return max(0.0, level - noise) / _RANGE_DB >= self._threshold


def levels(data: bytes, frame_bytes: int) -> npt.NDArray[np.float64]:
    """Return float64 [frames]: the power of each frame of samples, in dB of the greatest one."""
    samples = np.frombuffer(data, "<i2").reshape(-1, frame_bytes // 2) / _FULL_SCALE
    power = np.square(samples).mean(axis=1)
    found: npt.NDArray[np.float64] = 10 * np.log10(np.maximum(power, 1e-12))
    return found
