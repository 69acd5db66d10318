"""Pages in host memory: what the device has no room for, kept for whoever needs it again."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.kv.cache import KVCache


class HostPages:
    """A second pool of pages beside a cache, layer by layer. Whole pages go there and back."""

    def __init__(self, cache: KVCache, num_pages: int) -> None:
        self.num_pages = num_pages
        self._cache = cache
        # Memory of the host is taken page by page as it is written; beside a GPU it is pinned, so
        # that the device can read it directly.
        self._layers: list[Tensor] = [
            torch.empty((num_pages, *layer.shape[1:]), dtype=layer.dtype, pin_memory=layer.is_cuda)
            for layer in cache.layers
        ]

    def store(self, pages: list[int], host: list[int]) -> None:
        """Copy pages of the cache to host pages, pairwise."""
        for mine, layer in zip(self._layers, self._cache.layers, strict=True):
            mine[host] = layer[pages].to(mine.device)

    def load(self, host: list[int], pages: list[int]) -> None:
        """Copy host pages to pages of the cache, pairwise."""
        for mine, layer in zip(self._layers, self._cache.layers, strict=True):
            layer[pages] = mine[host].to(layer.device)
