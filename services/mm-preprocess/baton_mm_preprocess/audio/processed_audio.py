"""One preprocessed sound, the input of an audio tower."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baton_mm_preprocess.processors.processed_image import Grid


@dataclass(frozen=True, slots=True)
class ProcessedAudio:
    """Tensor for the worker, and the resulting number of embeddings."""

    features: npt.NDArray[np.float32]
    """[chunks, mels, frames]."""
    num_frames: int
    """Frames of each chunk without padding at the end of the last one."""
    num_tokens: int
    """Number of embeddings from the tower."""
    num_dropped: int = 0
    """Number of last embeddings that the tower drops."""

    @property
    def grid(self) -> Grid:
        """See `baton.protocol.media.Grid`."""
        return len(self.features), self.num_frames, self.num_dropped
