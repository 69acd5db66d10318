"""One image as a vision tower takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Grid: TypeAlias = tuple[int, int, int]
"""Frames, rows and columns, of what the processor's class says."""


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """What goes to the worker, and how many embeddings come back."""

    pixels: npt.NDArray[np.float32]
    """[patches, channels], [tiles, 3, height, width] or [3, height, width], as the tower wants."""
    grid: Grid
    num_tokens: int
    """Number of embeddings that the tower makes of it."""
