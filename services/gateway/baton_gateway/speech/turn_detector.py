"""Detects turns of a speaker by the level of sound above the noise.

    level    ....'||||.|||||'...........||||
    turns        [prefix|  one      |silence]   [two

A frame is speech if it is louder than the quietest frame of the last seconds by a part of 30 dB
(minimum statistics, Martin 2001). So the detector reacts to level, not to voices: any sound that
stands out is speech, and a sound that does not change for seconds is noise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FRAME_MS = 20
_ONSET_FRAMES = 3
"""Consecutive frames of speech that begin a turn."""
_NOISE_FRAMES = 150
"""Frames whose minimum is the noise level: 3 s."""
_LEAST_DB, _RANGE_DB = -60.0, 30.0
"""Minimum noise level relative to full scale, and level above the noise of activity 1, in dB."""
_FULL_SCALE = 32768.0


class SpeechStart(NamedTuple):
    """A turn begins."""

    ms: int
    """Start of its audio in milliseconds, from the beginning."""
    data: bytes
    """Samples of its beginning."""


class SpeechAudio(NamedTuple):
    """A turn continues."""

    data: bytes


class SpeechEnd(NamedTuple):
    """A turn has ended."""

    ms: int
    """End of its audio in milliseconds."""


TurnPart = SpeechStart | SpeechAudio | SpeechEnd


class TurnDetector:
    """Life cycle: `hear` processes audio as it arrives.

    Args:
        rate: samples of 16 bits per second.
        threshold: activity from which a frame is speech, 0 to 1.
        prefix_ms: audio before a turn that is part of it.
        silence_ms: time without speech that ends a turn, and is part of it.
        begin_ms: time of the first sample.
    """

    def __init__(
        self, rate: int, threshold: float, prefix_ms: int, silence_ms: int, begin_ms: int = 0
    ) -> None:
        self.speaking = False
        self._frame_bytes = 2 * (rate * FRAME_MS // 1000)
        self._threshold, self._silence_ms, self._ms = threshold, silence_ms, begin_ms
        self._remainder = bytearray()
        self._levels = deque[float](maxlen=_NOISE_FRAMES)
        self._recent = deque[bytes](maxlen=-(-prefix_ms // FRAME_MS) + _ONSET_FRAMES)
        self._loud_frames = self._quiet_frames = 0

    def hear(self, data: bytes) -> Iterator[TurnPart]:
        """Process samples. Yields the resulting parts of turns."""
        self._remainder += data
        size = self._frame_bytes
        frames = bytes(self._remainder[: len(self._remainder) // size * size])
        del self._remainder[: len(frames)]
        for number, level in enumerate(levels(frames, size)):
            self._ms += FRAME_MS
            frame = frames[number * size : (number + 1) * size]
            yield from self._continue(frame, level) if self.speaking else self._start(frame, level)

    def stop(self) -> bytes:
        """End the current turn, if there is one. Returns its samples that were not returned yet."""
        remainder = bytes(self._remainder) if self.speaking else b""
        self._remainder.clear()
        self._recent.clear()
        self.speaking, self._loud_frames = False, 0
        return remainder

    def _start(self, frame: bytes, level: float) -> Iterator[TurnPart]:
        self._recent.append(frame)
        self._loud_frames = self._loud_frames + 1 if self._is_speech(level) else 0
        if self._loud_frames >= _ONSET_FRAMES:
            self.speaking, self._quiet_frames = True, 0
            start = self._ms - FRAME_MS * len(self._recent)
            yield SpeechStart(start, b"".join(self._recent))
            self._recent.clear()

    def _continue(self, frame: bytes, level: float) -> Iterator[TurnPart]:
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
    """Return float64 [frames]: the power of each frame of samples, in dB of full scale."""
    samples = np.frombuffer(data, "<i2").reshape(-1, frame_bytes // 2) / _FULL_SCALE
    power = np.square(samples).mean(axis=1)
    decibels: npt.NDArray[np.float64] = 10 * np.log10(np.maximum(power, 1e-12))
    return decibels
