"""KV pages and their hashes in shared memory that outlives the worker.

    planes of the cache  |  one row per page: hash, group, 1
    each at a whole page of memory         0 bytes where a page has no hash

Pages of a GPU lie in memory of its keeper (`kept_pages`), and their rows in memory of the host.

The scheduler hashes a page once a result has confirmed all of its tokens, and removes the hash
before anything may write to the page again; `PageHashes` carries both in the order of the plans. So
rows have hashes of whole pages only, whenever the worker is killed: pages that a step was writing
have none. A partly written row is a hash that nothing matches.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from baton.logs import logger
from baton.process.segments import Segments, digest
from baton_worker.kernels.cpu.huge_pages import LEAST
from baton_worker.kernels.cpu.shared_pages import map_fixed, remove
from baton_worker.kv_cache.cache import KVCache
from baton_worker.kv_cache.kept_pages import KeptPages

_HASH = 16
_GROUP, _USED, _ROW = _HASH, _HASH + 1, _HASH + 2
"""Columns of a row, and its length."""
_WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE

log = logger(__name__)


class PersistentCache:
    """Life cycle: `lease` once, before anybody else has the address of a page; or `beside` once,
    before anybody writes to a page."""

    def __init__(self, rows: NDArray[np.uint8], free: Callable[[KVCache], None]) -> None:
        """`rows`: uint8 [num_pages, 18]. `free` gives the memory of the pages back."""
        self._rows, self._free = rows, free

    @classmethod
    def lease(
        cls, segments: Segments, name: str, settings: str, cache: KVCache
    ) -> PersistentCache | None:
        """Put the pages of a cache into leased memory, at the addresses that they have; their
        contents become those that the last worker of this name left, or zeros. None where there is
        no such memory: the cache stays private.

        Args:
            settings: all that the bytes of a page depend on.
        """
        starts, size = _places(cache.planes)
        rows = cache.num_pages * _ROW
        if starts is None:
            return None
        try:
            key = digest(memoryview(f"{settings} {starts}".encode()))
            descriptor, as_left = segments.lease(name, key, size + rows, cache.num_pages)
        except OSError as error:
            log.info("KV pages do not outlive this worker: %s", error)
            return None
        try:
            for start, plane in zip(starts, cache.planes, strict=True):
                map_fixed(plane.data_ptr(), _whole(plane), descriptor, start, _WRITABLE)
            memory = mmap.mmap(descriptor, rows, offset=size)
        finally:
            os.close(descriptor)
        return cls(_table(memory), _remove)._logged(as_left)

    @classmethod
    def beside(
        cls,
        segments: Segments,
        name: str,
        settings: str,
        cache: KVCache,
        kept: KeptPages,
    ) -> PersistentCache | None:
        """The hashes of pages that lie in memory of a GPU; with untrusted contents, as of a worker
        that an error ended, the pages become zeros. None where no memory of the host outlives the
        worker.

        Args:
            settings: all that the bytes of a page depend on.
        """
        key = digest(memoryview(f"{settings} {kept.generation.hex()}".encode()))
        try:
            descriptor, as_left = segments.lease(name, key, cache.num_pages * _ROW, 0)
        except OSError as error:
            log.info("KV pages do not outlive this worker: %s", error)
            return None
        try:
            memory = mmap.mmap(descriptor, cache.num_pages * _ROW)
        finally:
            os.close(descriptor)
        if not as_left:
            cache.zero()
        return cls(_table(memory), lambda cache: kept.drop())._logged(as_left)

    def _logged(self, as_left: bool) -> PersistentCache:
        if as_left:
            log.info("%d KV pages are there from the worker before", len(self.hashes()))
        return self

    def hashes(self) -> dict[int, bytes]:
        """Page hash by page; a hash that two pages have, from a write that was cut off, is none."""
        pages, twice = dict[bytes, int](), set[bytes]()
        for page in np.flatnonzero(self._rows[:, _USED]).tolist():
            row = self._rows[page]
            name = bytes(row[: _HASH + bool(row[_GROUP])])
            twice.update({name} & pages.keys())
            pages[name] = page
        return {page: name for name, page in pages.items() if name not in twice}

    def forget(self, pages: Iterable[int]) -> None:
        """Remove their hashes before anything writes to them."""
        for page in pages:
            self._rows[page] = 0

    def put(self, names: Mapping[int, bytes]) -> None:
        """Set the hashes of whole pages."""
        for page, name in names.items():
            self._rows[page, _USED] = 0
            self._rows[page, :_USED] = np.frombuffer(name.ljust(_USED, b"\0"), np.uint8)
            self._rows[page, _USED] = 1

    def clear(self) -> None:
        """Remove all hashes."""
        self._rows[:] = 0

    def give_back(self, cache: KVCache) -> None:
        """Return the memory of all pages to the system; on a CPU they read as zeros afterwards, and
        on a GPU they are free once this process has released them."""
        self.clear()
        self._free(cache)


def _table(memory: mmap.mmap) -> NDArray[np.uint8]:
    return np.frombuffer(memory, np.uint8).reshape(-1, _ROW)


def _remove(cache: KVCache) -> None:
    for plane in cache.planes:
        remove(plane.data_ptr(), _whole(plane))


def _places(planes: list[Tensor]) -> tuple[list[int] | None, int]:
    """The start of each plane in the memory, and the size of all; None where a plane does not
    consist of whole pages of memory: it is on a GPU, or small."""
    starts, size = list[int](), 0
    for plane in planes:
        if plane.device.type != "cpu" or plane.nbytes < LEAST:
            return None, 0
        starts.append(size)
        size += _whole(plane)
    return starts, size


def _whole(plane: Tensor) -> int:
    """Bytes of a plane, in whole pages of memory."""
    return -(-plane.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
