"""Splits long recordings at quiet places into parts that a speech-to-text model accepts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]


class SpeechSplit(msgspec.Struct, frozen=True):
    """Splitting parameters, with the names of vLLM's `SpeechToTextConfig`."""

    max_audio_clip_s: int = 30
    """Maximum length of a part in seconds."""
    overlap_chunk_second: int = 1
    """Seconds before the end of the longest part in which the cut may be."""
    min_energy_split_window_size: int = 1600
    """Samples over which loudness is measured."""

    @property
    def shortest(self) -> int:
        """Minimum seconds of a part that is followed by another one."""
        return self.max_audio_clip_s - self.overlap_chunk_second

    def __call__(self, samples: Samples, rate: int) -> Iterator[tuple[int, Samples]]:
        """Yield the parts of a recording, float32 [n], and the index at which each begins."""
        start, most = 0, self.max_audio_clip_s * rate
        while start + most < len(samples):
            searched = start + most - self.overlap_chunk_second * rate
            cut = searched + self._quietest(samples[searched : start + most])
            yield start, samples[start:cut]
            start = cut
        yield start, samples[start:]

    def _quietest(self, samples: Samples) -> int:
        """Start of the window with the least energy; windows are adjacent."""
        window = self.min_energy_split_window_size
        count = len(samples) // window
        if count == 0:
            return len(samples)
        windows = samples[: count * window].reshape(count, window).astype(np.float64)
        return int(np.square(windows).sum(1).argmin()) * window
