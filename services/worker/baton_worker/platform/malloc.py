"""Keep freed memory in the process, or give it back.

A step allocates and frees the same megabytes of activations and logits again and again. By default
glibc returns such blocks to the system at once, and every step then waits for fresh pages: up to
half of its time with a large vocabulary.
"""

from __future__ import annotations

import ctypes
import mmap

from baton.logs import logger

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP = 1 << 30
"""Free bytes at the top of the heap that are kept."""
_LARGEST = 1 << 25
"""Blocks up to this size come from the heap; 32 MiB is the most that glibc accepts."""

log = logger(__name__)
_C = ctypes.CDLL(None)


def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed. False where it has no such setting."""
    mallopt = getattr(_C, "mallopt", None)
    if mallopt is None or not mallopt(_M_MMAP_THRESHOLD, _LARGEST):
        log.info("this C library does not keep freed memory on request; steps may be slower")
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEEP))


def release_pages(address: int, size: int) -> None:
    """Return the whole pages of some bytes to the system, although they are still allocated: they
    may not be read again before they are written. Where the system does not support this, they
    stay."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    count = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
    madvise = getattr(_C, "madvise", None)
    if madvise is not None and hasattr(mmap, "MADV_DONTNEED") and count > 0:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(count), mmap.MADV_DONTNEED)


def release_freed_memory() -> bool:
    """Hand what is free now back to the system, wherever in the heap it is. False where the C
    library cannot."""
    trim = getattr(_C, "malloc_trim", None)
    return trim is not None and bool(trim(0))
