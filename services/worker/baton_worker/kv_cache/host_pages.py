"""Pages in host memory: KV swapped out of the device, to be swapped in again later."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.kv_cache.cache import KVCache


class HostPages:
    """A second pool of pages in host memory, plane by plane. Whole pages are copied in and out."""

    def __init__(self, cache: KVCache, num_pages: int) -> None:
        self.num_pages = num_pages
        self._cache = cache
        # Host memory is committed page by page as it is written. With a GPU it is pinned, so that
        # the device can read it directly. The byte order within a page is the same on both sides.
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
