"""One preprocessed image, the input of a vision tower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Grid: TypeAlias = tuple[int, int, int]
"""Frames, rows and columns, in the unit that the processor's class documents."""


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """Tensor for the worker, and the resulting number of embeddings."""

    pixels: npt.NDArray[np.float32]
    """[patches, channels], [tiles, 3, height, width] or [3, height, width], depending on the
    tower."""
    grid: Grid
    num_tokens: int
    """Number of embeddings from the tower."""
