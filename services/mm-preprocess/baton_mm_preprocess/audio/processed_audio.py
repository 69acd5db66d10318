"""One sound as an audio tower takes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baton_mm_preprocess.processors.processed_image import Grid


@dataclass(frozen=True, slots=True)
class ProcessedAudio:
    """What goes to the worker, and how many embeddings come back."""

    features: npt.NDArray[np.float32]
    """[chunks, mels, frames]."""
    num_frames: int
    """Frames of all chunks that sound falls into; the others are padding, at the end of the last
    chunk."""
    num_tokens: int
    """Number of embeddings that the tower makes of it."""
    num_dropped: int = 0
    """Number of the last embeddings that it leaves out."""

    @property
    def grid(self) -> Grid:
        """See `baton.protocol.media.Grid`."""
        return len(self.features), self.num_frames, self.num_dropped
