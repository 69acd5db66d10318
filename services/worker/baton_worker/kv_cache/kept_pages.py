"""KV pages in memory of a GPU that outlives the worker (`device_keeper`).

Their hashes lie in memory of the host that outlives it too (`PersistentCache.beside`): a page
without a hash is one that must not be read. Pages are at the same places whenever a worker of the
same settings starts, and the first steps of a worker write to the spare page alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from baton.logs import logger
from baton.process.segments import digest
from baton_worker.device_keeper.bump_allocator import BumpAllocator
from baton_worker.device_keeper.kept_memory import KeeperClient, KeptMemory
from baton_worker.device_keeper.messages import Found
from baton_worker.kv_cache.cache import KVCache

_MARK = 7
"""Bytes of a number that ranks tell each other: all of them are positive int64."""

log = logger(__name__)


class KeptPages:
    """The memory of a worker's pages on all of its GPUs."""

    def __init__(self, keeper: PageKeeper, own: KeptMemory, generation: bytes) -> None:
        self._keeper, self._own = keeper, own
        self.generation = generation
        """Differs between any two allocations, on any of the GPUs."""

    @property
    def memory(self) -> torch.Tensor:
        """uint8 [size]: that of this rank."""
        return self._own.memory

    @property
    def as_left(self) -> bool:
        """Whether that of this rank is as the worker before left it; otherwise it is zeros."""
        return self._own.as_left

    def there(self) -> bool:
        """Whether the keeper still holds it for the next worker."""
        return self._own.there()

    def drop(self) -> None:
        """Have it freed on all GPUs once no process has it open."""
        self._keeper.drop()


class PageKeeper:
    """Leases memory for the pages of one rank of a worker. All ranks call `found` and `lease`
    together.

    Args:
        clients: the keeper of each rank's GPU.
        worker: name of the worker.
        settings: all that the bytes of a page depend on, but for their number and shape.
        rank: this one.
        tell: sends a number to all ranks; returns that of each.
    """

    def __init__(
        self,
        clients: Sequence[KeeperClient],
        worker: str,
        settings: str,
        rank: int = 0,
        tell: Callable[[int], list[int]] = lambda number: [number],
    ) -> None:
        self._clients, self._settings, self._rank, self._tell = clients, settings, rank, tell
        self._names = [f"pages {worker}", *(f"pages {worker}/{n}" for n in range(1, len(clients)))]

    @property
    def _own(self) -> tuple[KeeperClient, str]:
        return self._clients[self._rank], self._names[self._rank]

    def found(self) -> Found:
        """The memory of the last worker of this name, which may still run; of several ranks the
        bytes of all of them. Nothing, if they have not left as many pages each."""
        client, name = self._own
        entry = client.find(name)
        counts = self._tell(entry.num_pages)
        size = sum(self._tell(entry.size))
        if len(set(counts)) > 1:
            client.drop(name)
            return Found()
        return Found(entry.generation, size, entry.num_pages, entry.sealed)

    def drop(self) -> None:
        """Drop the pages on all GPUs; no later worker requests them."""
        for client, name in zip(self._clients, self._names, strict=True):
            client.drop(name)

    def lease(self, cache: dict[str, Any]) -> tuple[KeptPages | None, Callable[..., Any]]:
        """Memory for a cache, which takes these arguments, and what it allocates with; None and
        what allocates memory of its own where a rank has none."""
        leased = self._leased(cache)
        mark = 0 if leased is None else int.from_bytes(leased.generation[:_MARK], "little")
        marks = self._tell(mark)
        if leased is None or 0 in marks:
            if leased is not None:
                log.info("KV pages do not outlive this worker: another rank has none that do")
                self.drop()
            return None, _own
        generation = digest(memoryview(repr(marks).encode()))
        return KeptPages(self, leased, generation), BumpAllocator(leased.memory).zeros

    def _leased(self, cache: dict[str, Any]) -> KeptMemory | None:
        counted = BumpAllocator()
        meta = cache | {"device": torch.device("meta"), "allocate": counted.zeros}
        shapes = [tuple(plane.shape) for plane in KVCache(**meta).planes]
        key = digest(memoryview(f"{self._settings} {shapes}".encode()))
        client, name = self._own
        return client.lease(name, key, counted.size, cache["num_pages"])


def _own(shape: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, device=device)
