"""Consecutive tensors in a block of memory: the same requests get the same places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGNMENT = 256
"""Bytes, as of torch's own allocations on a GPU."""


class BumpAllocator:
    """Hands out memory in the order of requests. Without memory it counts: its tensors have
    none."""

    def __init__(self, memory: Tensor | None = None) -> None:
        """`memory`: uint8 [size]."""
        self._memory, self.size = memory, 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor with the contents that its place has."""
        start, size = self.size, math.prod(shape) * dtype.itemsize
        self.size += -(-size // _ALIGNMENT) * _ALIGNMENT
        if self._memory is None:
            return torch.empty(*shape, dtype=dtype, device="meta")
        return self._memory[start : start + size].view(dtype).view(*shape)

    def zeros(self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The same as an allocator of pages: the memory is zeros, or what the last worker left."""
        return self.empty(shape, dtype)
