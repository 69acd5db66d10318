"""Weights that are brought to their destination some rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.checkpoint.mmap import release
from baton_worker.distributed.shard_weights import Destination
from baton_worker.kernels.quantized_weights import BlockQuantized

_AT_ONCE = 256 << 10
"""Values that are read and converted at one time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Floats [N, K] that stay where they are stored: rows are read when they are asked for."""

    shape: torch.Size
    read: Callable[[slice], Tensor]

    def __getitem__(self, rows: slice) -> Tensor:
        """Some rows, in memory."""
        return self.read(rows)

    def dequantise(self) -> Tensor:
        """All of them."""
        return self[:]


def copy_rows(destination: Destination, weight: Tensor | BlockQuantized | Rows) -> None:
    """Fill a destination, which has the shape of the weight. Where both have rows, little more than
    the destination is in memory: neither all of the weight's floats nor what was read of its file.
    """
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
        floats = some.dequantise() if isinstance(some, BlockQuantized) else some
        destination[first : first + step].copy_(floats)
        release(floats)
