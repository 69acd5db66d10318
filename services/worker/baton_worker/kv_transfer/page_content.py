"""KV in pages, as the content of transfers."""

from __future__ import annotations

from baton.protocol import Grant, Pull
from baton_worker.kv_cache.cache import KVCache
from baton_worker.kv_transfer.transport import Bytes
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
    read,
    tables,
    write,
)


class PageContent:
    """The pages of a cache. See `content.Content`."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
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
        room = pages.shape[1] * self._cache.page_size
        if not 0 < grant.length <= room:
            raise ValueError(f"{grant.length} tokens in {room} slots")
        return PageReader(self._cache, pages, grant.length)

    def writer(self, pull: Pull) -> PageWriter:
        """The pages that the scheduler has reserved."""
        try:
            pages = tables(self._cache, pull.pages)
        except ValueError as error:
            raise ValueError(f"its pages do not fit this worker: {error}") from error
        if not 0 <= pull.start < pull.end <= pages.shape[1] * self._cache.page_size:
            raise ValueError("its pages do not fit this worker")
        return PageWriter(self._cache, pages, pull)


class PageReader:
    """The first `length` tokens of a sequence, where they have pages."""

    def __init__(self, cache: KVCache, pages: Tables, length: int) -> None:
        self._cache, self._pages, self._length = cache, pages, length

    def covers(self, extent: Extent) -> bool:
        """See `content.Reader`."""
        if not 0 <= extent.layer < len(self._cache.tracks):
            return False
        if not 0 <= extent.start < extent.end <= self._length:
            return False
        size = block_bytes(self._cache, extent)
        fits = size <= BLOCK_BYTES or num_rows(self._cache, extent) == 1
        return fits and held(self._cache, self._pages, extent)

    def read(self, extent: Extent, into: Bytes) -> None:
        """See `content.Reader`."""
        read(self._cache, self._pages, extent, into)


class PageWriter:
    """Tokens `start` .. `end` - 1 of a pull, where they have pages."""

    def __init__(self, cache: KVCache, pages: Tables, pull: Pull) -> None:
        self._cache, self._pages = cache, pages
        self._start, self._end = pull.start, pull.end

    def extents(self) -> list[Extent]:
        """See `content.Writer`."""
        return extents(self._cache, self._start, self._end, self._pages)

    def write(self, extent: Extent, block: Bytes) -> None:
        """See `content.Writer`."""
        write(self._cache, self._pages, extent, block)
