"""Memory in huge pages, for packed weights and KV.

A decode step reads every weight once. With pages of 4 KiB the prefetcher stops at each page's end
and every page costs a TLB entry; with pages of 2 MiB both are rare. The system also allocates
gigabytes in a fraction of the time, which shortens a worker's restart.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.kernels.cpu.prefault import Populator
from baton_worker.kernels.cpu.shared_pages import HUGE, Block, aligned, drop

_CHUNK = 32 << 20
"""Bytes that are reserved at a time; the system commits only what is written."""
_LEAST = LEAST = 64 << 10
"""Smaller tensors stay where they are; larger ones have whole pages of memory of their own."""
_ALIGNMENT = 64
_OPEN = 4
"""Chunks that are still filled up: what is left of a huge page is memory too."""


@dataclass
class _Chunk:
    """A block of memory; its first bytes are in use."""

    memory: mmap.mmap
    offset: int
    """Of its first byte, which begins a huge page."""
    used: int = 0

    @classmethod
    def reserve(cls, size: int) -> _Chunk:
        """Room for so many bytes, in whole pages."""
        memory = _reserve(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE + HUGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return cls(memory, aligned(memory) - first)


@dataclass(frozen=True, slots=True)
class _Full:
    """A chunk into which nothing more is put; it goes with its last tensor."""

    memory: weakref.ref[mmap.mmap]
    offset: int
    used: int

    def block(self) -> Block | None:
        """Its weights; None if they are gone."""
        if (memory := self.memory()) is None:
            return None
        size = -(-self.used // mmap.PAGESIZE) * mmap.PAGESIZE
        return Block(memory, aligned(memory), size)


class HugePageArena:
    """Bump allocator: a block is freed when its last tensor is freed."""

    def __init__(self, chunk: int = _CHUNK) -> None:
        self._chunk = chunk
        self._open = deque[_Chunk]()
        self._full = list[_Full]()
        self._written: Callable[[], None] | None = None

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialized tensor in this memory; small tensors are allocated normally."""
        size = math.prod(shape) * dtype.itemsize
        if size < _LEAST:
            return torch.empty(*shape, dtype=dtype)
        if self._written is not None:
            self._written()
        chunk = next((c for c in self._open if c.used + size <= self._chunk), None)
        if chunk is None:
            chunk = self._new_chunk(size)
        offset = chunk.offset + chunk.used
        chunk.used += -(-size // _ALIGNMENT) * _ALIGNMENT
        if size > self._chunk:
            self._close(chunk)
        return _tensor(chunk.memory, offset, shape, dtype)

    def _new_chunk(self, size: int) -> _Chunk:
        chunk = _Chunk.reserve(max(size, self._chunk))
        if size <= self._chunk:
            if len(self._open) == _OPEN:
                self._close(self._open.popleft())
            self._open.append(chunk)
        return chunk

    def _close(self, chunk: _Chunk) -> None:
        self._full = [full for full in self._full if full.memory() is not None]
        self._full.append(_Full(weakref.ref(chunk.memory), chunk.offset, chunk.used))

    def on_written(self, then: Callable[[], None] | None) -> None:
        """Call this when the tensors in `full_blocks` are written: the thread that requests the
        next tensor has written the earlier ones."""
        self._written = then

    def full_blocks(self) -> Iterator[Block]:
        """Chunks into which nothing more is put, each of them once."""
        full, self._full = self._full, []
        for some in full:
            if (block := some.block()) is not None:
                yield block

    def close_all(self) -> None:
        """Close the existing chunks for further tensors."""
        while self._open:
            self._close(self._open.popleft())


def zeros(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of this shape, in huge pages on a CPU. The memory counts as used at once, written or
    not.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _LEAST:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    memory = _reserve(size)
    _POPULATOR.add(memory)
    return _tensor(memory, 0, shape, dtype)


def give_back(memory: Tensor) -> None:
    """Return the memory of a tensor of `zeros` to the system; it reads as zeros afterwards."""
    if memory.device.type == "cpu" and memory.nbytes >= _LEAST:
        drop(memory.data_ptr(), -(-memory.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    else:
        memory.zero_()


def _reserve(size: int) -> mmap.mmap:
    """Zeroed memory, in huge pages if the system has them."""
    # Not shared, as is Python's default: huge pages of shared memory are a setting of its own.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # The advice may be refused by a system without huge pages; that costs only speed.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _tensor(memory: mmap.mmap, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    flat = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset)
    return flat.view(*shape)


ARENA = HugePageArena()
"""The weights of this process."""
_POPULATOR = Populator()
