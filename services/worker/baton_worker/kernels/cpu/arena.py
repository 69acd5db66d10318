"""Memory for packed weights in huge pages.

A decode step reads every weight once. In pages of 4 KiB the core's prefetcher stops at each page's
end and every page costs an entry of the address cache; in pages of 2 MiB both are rare.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

_CHUNK = 32 << 20
"""Bytes that are reserved at a time; the system commits only what is written."""
_LEAST = 64 << 10
"""Smaller tensors stay where they are."""
_ALIGNMENT = 64


class Arena:
    """Hands out memory that is never asked back: it goes when the last tensor in it has gone."""

    def __init__(self, chunk: int = _CHUNK) -> None:
        self._chunk, self._used = chunk, 0
        self._memory: mmap.mmap | None = None

    def settle(self, tensor: Tensor) -> Tensor:
        """A copy of a contiguous CPU tensor in this memory; a small tensor as it is."""
        size = tensor.nbytes
        if size < _LEAST:
            return tensor
        if size > self._chunk:
            return _copy(tensor, _reserve(size), 0)
        if self._memory is None or self._used + size > self._chunk:
            self._memory, self._used = _reserve(self._chunk), 0
        offset = self._used
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return _copy(tensor, self._memory, offset)


def _reserve(size: int) -> mmap.mmap:
    """Zeros; in huge pages where the system has them to give."""
    # Not shared, as is Python's default: huge pages of shared memory are a setting of its own.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # It is advice: a kernel without huge pages refuses it, and loses nothing but speed.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _copy(tensor: Tensor, memory: mmap.mmap, offset: int) -> Tensor:
    kept = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    return kept.view(tensor.shape).copy_(tensor)


ARENA = Arena()
"""The weights of this process."""
