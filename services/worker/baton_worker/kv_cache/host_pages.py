"""Pages in host memory: KV swapped out of the device, to be swapped in again later."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.errors import SettingsError
from baton_worker.kv_cache.cache import KVCache
from baton_worker.platform.device_link import CudaLink, DeviceLink


class HostPages:
    """A second pool of pages in host memory, plane by plane. Whole pages are copied in and out,
    on the stream of the steps.

    Args:
        link: copies between the host and a GPU; None: that of its device.

    Raises:
        SettingsError: the host has not as much memory.
    """

    def __init__(self, cache: KVCache, num_pages: int, link: DeviceLink | None = None) -> None:
        self.num_pages = num_pages
        self._cache, self._link = cache, CudaLink() if link is None else link
        # Memory is committed page by page as it is written. The byte order within a page is the
        # same on both sides.
        try:
            self._planes: list[Tensor] = [
                torch.empty_strided(
                    (num_pages, *plane.shape[1:]), plane.stride(), dtype=plane.dtype
                )
                for plane in cache.planes
            ]
        except RuntimeError as error:
            raise SettingsError(
                f"--host-cache-bytes: this machine has no memory for {num_pages} pages. Give less."
            ) from error

    def store(self, pages: list[int], host: list[int]) -> None:
        """Copy pages of the cache to host pages, pairwise."""
        for mine, plane in zip(self._planes, self._cache.planes, strict=True):
            if plane.device.type == "cpu":
                mine[host] = plane[pages]
            else:
                selected = plane.index_select(0, self._there(plane, torch.tensor(pages)))
                mine[host] = self._link.download(selected).wait()

    def load(self, host: list[int], pages: list[int]) -> None:
        """Copy host pages to pages of the cache, pairwise."""
        for mine, plane in zip(self._planes, self._cache.planes, strict=True):
            if plane.device.type == "cpu":
                plane[pages] = mine[host]
            else:
                where = self._there(plane, torch.tensor(pages))
                plane.index_copy_(0, where, self._there(plane, mine[host]))

    def _there(self, plane: Tensor, numbers: Tensor) -> Tensor:
        """Numbers on the device of a plane, by pinned memory."""
        data = numbers.contiguous().view(-1).view(torch.uint8)
        pinned = self._link.pinned(len(data))
        pinned.copy_(data)
        there = plane.new_empty(len(data), dtype=torch.uint8)
        self._link.upload(pinned, there)
        return there.view(numbers.dtype).view(numbers.shape)
