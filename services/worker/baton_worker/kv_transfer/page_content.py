"""KV in pages, as the content of transfers."""

from __future__ import annotations

import numpy as np
import torch

from baton.protocol import Grant, Pull
from baton_worker.kv_cache.cache import KVCache
from baton_worker.kv_transfer.device_copies import DeviceCopies
from baton_worker.kv_transfer.transport import BlockBuffer
from baton_worker.kv_transfer.wire_format import (
    BLOCK_BYTES,
    Extent,
    Tables,
    block_bytes,
    dtype_name,
    extents,
    held,
    layout,
    num_rows,
    place_bytes,
    places,
    read,
    tables,
    write,
)
from baton_worker.platform.side_stream import SideStream, side_stream


def device_of(cache: KVCache) -> torch.device:
    """Where the pages are."""
    return next((plane.device for plane in cache.planes), torch.device("cpu"))


class PageContent:
    """The pages of a cache. See `content.Content`."""

    def __init__(self, cache: KVCache, stream: SideStream | None = None) -> None:
        """`stream`: what copies between pages on a device and blocks; None: a new one, if the pages
        are not on a CPU."""
        self._cache = cache
        self._copies: DeviceCopies | None = None
        if stream is not None or (stream := side_stream(device_of(cache))) is not None:
            self._copies = DeviceCopies(stream)
        self.layout, self.place_bytes = layout(cache), place_bytes(cache)

    def dtype_name(self, layer: int) -> str:
        """See `content.Content`."""
        return dtype_name(self._cache, layer)

    def block_bytes(self, extent: Extent) -> int:
        """See `content.Content`."""
        return block_bytes(self._cache, extent)

    def reader(self, grant: Grant) -> PageReader:
        """The granted tokens in their pages."""
        pages = tables(self._cache, grant.pages)
        buffer = pages.shape[1] * self._cache.page_size
        if not 0 < grant.length <= buffer:
            raise ValueError(f"{grant.length} tokens in {buffer} slots")
        return PageReader(self._cache, pages, grant.length, self._copies)

    def writer(self, pull: Pull) -> PageWriter:
        """The pages that the scheduler has reserved."""
        try:
            pages = tables(self._cache, pull.pages)
        except ValueError as error:
            raise ValueError(f"its pages do not fit this worker: {error}") from error
        if not 0 <= pull.start < pull.end <= pages.shape[1] * self._cache.page_size:
            raise ValueError("its pages do not fit this worker")
        return PageWriter(self._cache, pages, pull, self._copies)


class PageReader:
    """The first `length` tokens of a sequence, where they have pages."""

    def __init__(
        self, cache: KVCache, pages: Tables, length: int, copies: DeviceCopies | None
    ) -> None:
        self._cache, self._pages, self._length = cache, pages, length
        self._copies = copies

    def covers(self, extent: Extent) -> bool:
        """See `content.Reader`."""
        if not 0 <= extent.layer < len(self._cache.tracks):
            return False
        if not 0 <= extent.start < extent.end <= self._length:
            return False
        size = block_bytes(self._cache, extent)
        fits = size <= BLOCK_BYTES or num_rows(self._cache, extent) == 1
        return fits and held(self._cache, self._pages, extent)

    def read(self, extent: Extent, into: BlockBuffer) -> None:
        """See `content.Reader`."""
        if self._copies is not None:
            layer = self._cache.tracks[extent.layer].pages
            self._copies.read(layer, places(self._cache, self._pages, extent), into)
        else:
            assert isinstance(into, np.ndarray), "pages of a host go to memory of a host"
            read(self._cache, self._pages, extent, into)


class PageWriter:
    """Tokens `start` .. `end` - 1 of a pull, where they have pages."""

    def __init__(
        self, cache: KVCache, pages: Tables, pull: Pull, copies: DeviceCopies | None
    ) -> None:
        self._cache, self._pages, self._copies = cache, pages, copies
        self._fence = None if copies is None else copies.fence()
        self._start, self._end = pull.start, pull.end

    def extents(self) -> list[Extent]:
        """See `content.Writer`."""
        return extents(self._cache, self._start, self._end, self._pages)

    def write(self, extent: Extent, block: BlockBuffer) -> None:
        """See `content.Writer`."""
        if self._copies is not None:
            assert self._fence is not None
            layer = self._cache.tracks[extent.layer].pages
            where = places(self._cache, self._pages, extent)
            self._copies.write(layer, where, block, self._fence)
        else:
            assert isinstance(block, np.ndarray), "pages of a host come from memory of a host"
            write(self._cache, self._pages, extent, block)
