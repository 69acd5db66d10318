"""Sounds whose number of embeddings follows from their length alone."""

from __future__ import annotations

import msgspec

from baton_mm_preprocess.audio.log_mel_windows import LogMelWindows
from baton_mm_preprocess.audio.processed_audio import ProcessedAudio
from baton_mm_preprocess.audio.spectrum import Samples


class GroupedWindows(msgspec.Struct, frozen=True, tag="grouped_windows"):
    """Fun-Audio-Chat's: one embedding of `group` frames, of which there are `frame_rate` a second,
    begun ones left out. The encoder makes of `windows` as many states or one more, so what the last
    state makes may be left out."""

    windows: LogMelWindows
    group: int = 5
    frame_rate: int = 25

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self.windows.rate

    def __call__(self, samples: Samples) -> ProcessedAudio:
        """See `LogMelWindows.__call__`."""
        made = self.windows(samples)
        length = max(len(samples), self.windows.min_samples)
        # In the order of the published processor, whose rounding it is.
        frames = max(1, int(length / self.rate * self.frame_rate))
        wanted, groups = -(-frames // self.group), -(-made.num_tokens // self.group)
        return ProcessedAudio(made.features, made.num_frames, wanted, groups - wanted)
