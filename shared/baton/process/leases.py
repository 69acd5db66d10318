"""Memory of a keeper that one process of a name leases at a time, and that outlives it.

The next process of the same name finds the memory as it was left, if it has the same use for it
(`key`). What the memory is, a segment of the host or an allocation of a device, is the keeper's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Lease(Generic[M]):
    """Memory that a process leases."""

    key: bytes
    """Digest of all that gives the bytes their meaning."""
    size: int
    """In bytes."""
    num_pages: int
    """KV pages that lie in it; 0 if it holds something else."""
    holder: int
    """Process id of the last one that asked for it."""
    memory: M


class Leases(Generic[M]):
    """The leases of one keeper, by name. Not thread-safe."""

    def __init__(self, make: Callable[[int], M], free: Callable[[M], None]) -> None:
        """`make`: zeroed memory of so many bytes; may raise `OSError`. `free`: no process leases
        this memory any more."""
        self._make, self._free = make, free
        self._held: dict[bytes, Lease[M]] = {}

    def acquire(
        self, name: bytes, key: bytes, size: int, num_pages: int, holder: int
    ) -> tuple[Lease[M], bool]:
        """The memory of a name, and whether it is as the last process left it. Otherwise it is
        zeros. Raises `OSError`."""
        old = self._held.get(name)
        if old is not None and (old.key, old.size) == (key, size):
            self._held[name] = same = replace(old, holder=holder)
            return same, True
        self.end(name)
        self._held[name] = made = Lease(key, size, num_pages, holder, self._make(size))
        return made, False

    def find(self, name: bytes) -> Lease[M] | None:
        """The lease of a name."""
        return self._held.get(name)

    def end(self, name: bytes) -> None:
        """Forget a lease, if there is one of this name."""
        if (lease := self._held.pop(name, None)) is not None:
            self._free(lease.memory)

    def end_of(self, holder: int) -> None:
        """End the leases of this process."""
        for name in [name for name, lease in self._held.items() if lease.holder == holder]:
            self.end(name)

    def memories(self) -> list[M]:
        """The memory of every lease."""
        return [lease.memory for lease in self._held.values()]

    def most_pages(self) -> int:
        """KV pages of the lease that has most; 0 without any."""
        return max((lease.num_pages for lease in self._held.values()), default=0)

    def close(self) -> None:
        """Forget all of them."""
        for name in list(self._held):
            self.end(name)
