"""Swap packed weights for equal ones in shared memory, so that workers of a host have them once.

    private pages  --digest--> a kept segment? --compare--> mapped in their place, read-only
                                     | none
                                     +--> copied into a new segment, which is kept

Addresses do not change, so no other code is affected. A segment is used only if all of its bytes
are those of the private pages. Shared memory is in huge pages like the private one (Linux 6.1 and
later), otherwise it is not used: small pages may make steps slower.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from baton.logs import logger
from baton.process import segments, standby

HUGE = 2 << 20
"""Bytes of a huge page."""
_MADV_COLLAPSE = 25
"""Of Linux 6.1, which Python does not name: huge pages now, whatever the system's settings."""
_MAP_FIXED = 0x10
_DELAY = 10.0
"""Seconds in which a worker has started and served the requests that waited."""

log = logger(__name__)
_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_C.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_C.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True, slots=True)
class Block:
    """Weights that are not written any more.

    Attributes:
        memory: the mapping in which they lie.
        address: of their first byte, a multiple of `HUGE`.
        size: in bytes, whole pages.
    """

    memory: mmap.mmap
    address: int
    size: int


class SharedPages:
    """Life cycle: `while_standby` as often as there are blocks, `finish` once all are there.

    A standby shares its weights while it packs them: they are never in memory twice. An active
    worker does so later, from a thread: requests that wait for it go first.
    """

    def __init__(
        self,
        store: segments.Segments,
        blocks: Callable[[], Iterator[Block]],
        delay: float = _DELAY,
    ) -> None:
        """`blocks`: those that are written since the last call."""
        self._store, self._blocks, self._delay = store, blocks, delay
        self._swapped = self._total = 0
        self._reason = ""
        self._names: set[bytes] = set()
        """Of the segments that are mapped here."""
        self._replaced = False

    def while_standby(self) -> None:
        """Share what is there, in a standby that has not been called."""
        if standby.held():
            self._share()

    def finish(self) -> None:
        """Share the rest, and say how much it is."""
        if standby.held():
            self._share()
            self._report()
        else:
            threading.Thread(target=self._run, name="share", daemon=True).start()

    def replaced(self) -> None:
        """Other weights are in use: the supervisor need not keep these for the next worker."""
        self._replaced = True
        for name in self._names:
            self._store.drop(name)

    def _run(self) -> None:
        time.sleep(self._delay)
        self._share(rests=True)
        self._report()

    def _share(self, rests: bool = False) -> None:
        """`rests`: takes at most half of a core."""
        for block in self._blocks():
            if self._replaced:
                return
            begun = time.thread_time()
            self._total += block.size
            self._try(block)
            if rests:
                time.sleep(time.thread_time() - begun)

    def _try(self, block: Block) -> None:
        """The first reason against it is one against all that follow."""
        try:
            if not self._reason:
                self._swap(block)
                self._swapped += block.size
        except OSError as error:
            self._reason = error.strerror or str(error)

    def _report(self) -> None:
        shared = f"{self._swapped >> 20} of {self._total >> 20} MiB"
        why = f"; the rest is not: {self._reason}" if self._reason else ""
        log.info("%s of packed weights are in memory that workers share%s", shared, why)

    def _swap(self, block: Block) -> None:
        contents = memoryview((ctypes.c_char * block.size).from_address(block.address))
        name = segments.digest(contents)
        descriptor = self._store.take(name)
        exists = descriptor is not None
        if descriptor is None:
            descriptor = segments.make(contents)
        try:
            _check(descriptor, block, collapse=not exists)
            if not exists and not self._store.keep(name, descriptor):
                raise OSError("the supervisor holds as much as it may")
            map_fixed(block.address, block.size, descriptor)
            self._names.add(name)
        finally:
            os.close(descriptor)
        # They are huge already; this maps them as such.
        _C.madvise(block.address, block.size, _MADV_COLLAPSE)


def _check(descriptor: int, block: Block, collapse: bool) -> None:
    """Raises `OSError` unless a segment is sealed, in huge pages and equal to a block."""
    if not segments.is_sealed(descriptor, block.size):
        raise OSError("a kept segment is not sealed or of another size")
    room = mmap.mmap(-1, block.size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = aligned(room)
    map_fixed(first, block.size, descriptor)
    whole = block.size // HUGE * HUGE
    if collapse and whole and _C.madvise(first, whole, _MADV_COLLAPSE):
        reason = os.strerror(ctypes.get_errno())
        raise OSError(f"this system has no huge pages for shared memory ({reason})")
    if _C.memcmp(first, block.address, block.size):
        raise OSError("a kept segment has other contents than its name says")


def aligned(memory: mmap.mmap) -> int:
    """The first address in a mapping that is a multiple of `HUGE`."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return -(-address // HUGE) * HUGE


def map_fixed(
    address: int,
    size: int,
    descriptor: int,
    offset: int = 0,
    protection: int = mmap.PROT_READ,
) -> None:
    """Map shared memory in the place of other pages. Raises `OSError`."""
    flags = mmap.MAP_SHARED | _MAP_FIXED
    mapped = _C.mmap(address, size, protection, flags, descriptor, offset)
    if mapped != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def drop(address: int, size: int) -> None:
    """Give private memory back to the system; later reads give zeros. Raises `OSError`."""
    if _C.madvise(address, size, mmap.MADV_DONTNEED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def remove(address: int, size: int) -> None:
    """Give shared memory back to the system; later reads give zeros. Raises `OSError`."""
    if _C.madvise(address, size, mmap.MADV_REMOVE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
