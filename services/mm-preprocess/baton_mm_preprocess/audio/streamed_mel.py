"""Log-mel spectrograms for streaming speech models (Voxtral Realtime, arXiv:2602.11298)."""

from __future__ import annotations

import msgspec
import numpy as np

from baton_mm_preprocess.audio.processed_audio import ProcessedAudio
from baton_mm_preprocess.audio.spectrum import LogMel, Samples


class StreamedMel(msgspec.Struct, frozen=True, tag="streamed_mel"):
    """The frames of a sound, padded with silence at both ends; each `frames_per_token` of them
    correspond to one token."""

    spectrum: LogMel
    frames_per_token: int
    left: int
    """Tokens of silence before the sound."""
    right: int
    """Tokens of silence after the one in which the sound ends."""

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
