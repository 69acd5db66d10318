"""Pages in host memory: what the device has no room for, kept for whoever needs it again."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.kv_cache.cache import KVCache


class HostPages:
    """A second pool of pages beside a cache, plane by plane. Whole pages go there and back."""

    def __init__(self, cache: KVCache, num_pages: int) -> None:
        self.num_pages = num_pages
        self._cache = cache
        # Memory of the host is taken page by page as it is written; beside a GPU it is pinned, so
        # that the device can read it directly. A page has the same order in memory here and there.
        self._planes: list[Tensor] = [
            torch.empty_strided(
                (num_pages, *plane.shape[1:]),
                plane.stride(),
                dtype=plane.dtype,
                pin_memory=plane.is_cuda,
            )
            for plane in cache.planes
        ]

    def store(self, pages: list[int], host: list[int]) -> None:
        """Copy pages of the cache to host pages, pairwise."""
        for mine, plane in zip(self._planes, self._cache.planes, strict=True):
            mine[host] = plane[pages].to(mine.device)

    def load(self, host: list[int], pages: list[int]) -> None:
        """Copy host pages to pages of the cache, pairwise."""
        for mine, plane in zip(self._planes, self._cache.planes, strict=True):
            plane[pages] = mine[host].to(plane.device)
