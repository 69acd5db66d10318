"""Memory that one process of a name leases at a time, and that outlives the process.

The next process of the same name gets the memory unchanged if it has the same `key`. The memory
itself, a segment of the host or an allocation of a device, is managed by the keeper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Lease(Generic[M]):
    """Leased memory."""

    key: bytes
    """Digest of everything that determines the meaning of the bytes."""
    size: int
    """Size in bytes."""
    num_pages: int
    """Number of KV pages in it; 0 if it contains something else."""
    holder: int
    """Process id of the last lease holder."""
    memory: M


class Leases(Generic[M]):
    """The leases of one keeper, by name. Not thread-safe."""

    def __init__(self, make: Callable[[int], M], free: Callable[[M], None]) -> None:
        """`make`: returns zeroed memory of a size; may raise `OSError`. `free`: called when no
        process leases the memory any more."""
        self._make, self._free = make, free
        self._leases: dict[bytes, Lease[M]] = {}

    def acquire(
        self, name: bytes, key: bytes, size: int, num_pages: int, holder: int
    ) -> tuple[Lease[M], bool]:
        """Lease the memory of a name. Returns it, and whether it has the last process's content;
        otherwise it is zeroed. Raises `OSError`."""
        old = self._leases.get(name)
        if old is not None and (old.key, old.size) == (key, size):
            self._leases[name] = same = replace(old, holder=holder)
            return same, True
        self.end(name)
        self._leases[name] = lease = Lease(key, size, num_pages, holder, self._make(size))
        return lease, False

    def find(self, name: bytes) -> Lease[M] | None:
        """The lease of a name."""
        return self._leases.get(name)

    def end(self, name: bytes) -> None:
        """Drop a lease, if there is one of this name."""
        if (lease := self._leases.pop(name, None)) is not None:
            self._free(lease.memory)

    def end_of(self, holder: int) -> None:
        """End the leases of this process."""
        for name in [name for name, lease in self._leases.items() if lease.holder == holder]:
            self.end(name)

    def memories(self) -> list[M]:
        """The memory of every lease."""
        return [lease.memory for lease in self._leases.values()]

    def most_pages(self) -> int:
        """Number of KV pages of the largest lease; 0 without any."""
        return max((lease.num_pages for lease in self._leases.values()), default=0)

    def close(self) -> None:
        """Drop all leases."""
        for name in list(self._leases):
            self.end(name)
