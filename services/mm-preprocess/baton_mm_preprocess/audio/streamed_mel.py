"""Log-mel spectrograms of sounds that a model reads while it writes (Voxtral Realtime,
arXiv:2602.11298)."""

from __future__ import annotations

import msgspec
import numpy as np

from baton_mm_preprocess.audio.processed_audio import ProcessedAudio
from baton_mm_preprocess.audio.spectrum import LogMel, Samples


class StreamedMel(msgspec.Struct, frozen=True, tag="streamed_mel"):
    """The frames of a sound with silence before and behind it, so that each `frames_per_token` of
    them go along with one token."""

    spectrum: LogMel
    frames_per_token: int
    left: int
    """Tokens of silence before the sound."""
    right: int
    """Tokens of silence behind the one in which it ends."""

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self.spectrum.rate

    def __call__(self, samples: Samples) -> ProcessedAudio:
        """Mono samples, float32 [n]."""
        size = self.frames_per_token * self.spectrum.hop
        behind = -len(samples) % size + self.right * size
        features = self.spectrum(np.pad(samples, (self.left * size, behind)))
        count = features.shape[1]
        return ProcessedAudio(features[None], count, count // self.frames_per_token)
