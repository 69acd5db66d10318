"""Keep freed memory in the process.

A step allocates and frees the same megabytes of activations and logits again and again. By
default glibc hands such blocks back to the system at once, and every step then pays for fresh
pages: up to half of its time with a large vocabulary.
"""

from __future__ import annotations

import ctypes

from baton.logs import logger

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP = 1 << 30
"""Free bytes at the top of the heap that are kept."""
_LARGEST = 1 << 25
"""Blocks up to this size come from the heap; 32 MiB is the most that glibc accepts."""

log = logger(__name__)


def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed. False where it has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not mallopt(_M_MMAP_THRESHOLD, _LARGEST):
        log.info("this C library does not keep freed memory on request; steps may be slower")
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEEP))
