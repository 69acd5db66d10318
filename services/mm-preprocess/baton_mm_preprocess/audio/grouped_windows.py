"""Sounds whose number of embeddings depends on their length only."""

from __future__ import annotations

import msgspec

from baton_mm_preprocess.audio.log_mel_windows import LogMelWindows
from baton_mm_preprocess.audio.processed_audio import ProcessedAudio
from baton_mm_preprocess.audio.spectrum import Samples


class GroupedWindows(msgspec.Struct, frozen=True, tag="grouped_windows"):
    """Fun-Audio-Chat's rule: one embedding per complete group of `group` frames, at `frame_rate`
    frames per second. The encoder produces that many states from `windows`, or one more, so its
    last state may be dropped."""

    windows: LogMelWindows
    group: int = 5
    frame_rate: int = 25

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self.windows.rate

    def __call__(self, samples: Samples) -> ProcessedAudio:
        """See `LogMelWindows.__call__`."""
        windows = self.windows(samples)
        length = max(len(samples), self.windows.min_samples)
        # Computed in the order of the published processor, to get the same rounding.
        frames = max(1, int(length / self.rate * self.frame_rate))
        num_frames, groups = -(-frames // self.group), -(-windows.num_tokens // self.group)
        return ProcessedAudio(windows.features, windows.num_frames, num_frames, groups - num_frames)
