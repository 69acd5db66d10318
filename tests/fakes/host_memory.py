"""A device double of memory that outlives a worker: allocations are files that all may map."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from baton_worker.device_keeper.driver import DeviceError


class HostDriver:
    """See `DeviceDriver`; an address is the number of a file, and so is its handle."""

    def __init__(self, folder: Path, capacity: int = 1 << 30) -> None:
        self._folder, self.capacity = folder, capacity
        self.sizes = dict[int, int]()
        """Bytes of what is allocated, by address."""
        self._made = 0

    def allocate(self, size: int) -> int:
        """See `DeviceDriver`."""
        if sum(self.sizes.values()) + size > self.capacity:
            raise DeviceError("cuMemAlloc_v2: out of memory (2)")
        self._made += 1
        with open(self._folder / str(self._made), "wb") as file:
            file.truncate(size)
        self.sizes[self._made] = size
        return self._made

    def free(self, address: int) -> None:
        """See `DeviceDriver`."""
        del self.sizes[address]
        os.unlink(self._folder / str(address))

    def export(self, address: int) -> bytes:
        """See `DeviceDriver`."""
        return str(address).encode()

    def open(self, handle: bytes) -> int:
        """See `DeviceDriver`."""
        return int(handle)

    def close(self, address: int) -> None:
        """See `DeviceDriver`."""


class HostOpener:
    """See `MemoryOpener`; the tensors are on the CPU."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.refuses = folder, False

    def open(self, handle: bytes, size: int, closed: Callable[[], None]) -> Tensor:
        """See `MemoryOpener`."""
        if self.refuses:
            raise DeviceError("cuIpcOpenMemHandle_v2: operation not supported (801)")
        with open(self._folder / handle.decode(), "r+b") as file:
            memory = mmap.mmap(file.fileno(), size)
        weakref.finalize(memory, closed).atexit = False
        return torch.frombuffer(memory, dtype=torch.uint8)
