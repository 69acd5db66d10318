"""Weights copied to their target a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.checkpoint.formats.mmap import release
from baton_worker.distributed.shard_weights import Destination
from baton_worker.kernels.weight import QuantizedWeight

_AT_ONCE = 256 << 10
"""Number of values read and converted at a time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Float rows [N, K] that are read from storage on access."""

    shape: torch.Size
    read: Callable[[slice], Tensor]

    def __getitem__(self, rows: slice) -> Tensor:
        """Read some rows."""
        return self.read(rows)

    def dequantise(self) -> Tensor:
        """Read all rows."""
        return self[:]


def copy_rows(destination: Destination, weight: Tensor | QuantizedWeight | Rows) -> None:
    """Fill a target with a weight of the same shape. If both support rows, peak memory is little
    more than the target's."""
    whole = isinstance(weight, Tensor) and not (weight.is_contiguous() and weight.ndim)
    if whole or not isinstance(destination, Tensor):
        weight = weight if isinstance(weight, Tensor) else weight.dequantise()
        destination.copy_(weight)
        release(weight)
        return
    count = weight.shape[0]
    step = max(1, _AT_ONCE * count // max(1, weight.shape.numel()))
    for first in range(0, count, step):
        some = weight[first : first + step]
        floats = some if isinstance(some, Tensor) else some.dequantise()
        destination[first : first + step].copy_(floats)
        release(floats)
