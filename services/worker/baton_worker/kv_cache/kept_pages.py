"""KV pages in memory of a GPU that outlives the worker (`device_keeper`).

Their hashes lie in memory of the host that outlives it too (`PersistentCache.beside`): a page
without a hash is one that nobody may read. Pages are at the same places whenever a worker of the
same settings starts, and the first steps of a worker write to the spare page alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from baton.process.segments import digest
from baton_worker.device_keeper.bump_allocator import BumpAllocator
from baton_worker.device_keeper.kept_memory import KeeperClient, KeptMemory
from baton_worker.device_keeper.messages import Found
from baton_worker.kv_cache.cache import KVCache


class PageKeeper:
    """Lends memory for the pages of one worker.

    Args:
        client: the keeper of its GPU.
        worker: its name.
        settings: all that the bytes of a page depend on, but for their number and shape.
    """

    def __init__(self, client: KeeperClient, worker: str, settings: str) -> None:
        self._client, self._name, self._settings = client, f"pages {worker}", settings

    def found(self) -> Found:
        """What the last worker of this name has left, or one that runs still has."""
        return self._client.find(self._name)

    def drop(self) -> None:
        """They are not asked for again."""
        self._client.drop(self._name)

    def lease(self, cache: dict[str, Any]) -> tuple[KeptMemory | None, Callable[..., Any]]:
        """Memory for a cache, which takes these arguments, and what it allocates with; None and
        what allocates memory of its own where there is none."""
        counted = BumpAllocator()
        meta = cache | {"device": torch.device("meta"), "allocate": counted.zeros}
        shapes = [tuple(plane.shape) for plane in KVCache(**meta).planes]
        key = digest(memoryview(f"{self._settings} {shapes}".encode()))
        kept = self._client.lease(self._name, key, counted.size, cache["num_pages"])
        return kept, _own if kept is None else BumpAllocator(kept.memory).zeros


def _own(shape: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, device=device)
