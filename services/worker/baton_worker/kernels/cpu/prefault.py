"""Prefault memory in the background.

The system commits memory page by page on first write, which takes seconds per gigabyte on some
virtual machines. To keep startup short, a thread prefaults the pages afterwards, using at most half
of a core.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
import weakref
from queue import SimpleQueue

from baton.logs import logger
from baton.process import standby

_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14, which Python does not name: changes nothing that is there."""
_STEP = 4 << 20
"""Bytes that are taken at a time: other allocations wait meanwhile."""
_DELAY = 10.0
"""Seconds in which a worker has started and served the requests that waited."""

log = logger(__name__)
_C = ctypes.CDLL(None, use_errno=True)


class Populator:
    """Thread that prefaults reserved memory, starting `delay` seconds after the first `add`."""

    def __init__(self, delay: float = _DELAY) -> None:
        self._delay = delay
        self._waiting = SimpleQueue[weakref.ref[mmap.mmap]]()
        self._begin = threading.Lock()
        self._begun = False

    def add(self, memory: mmap.mmap) -> None:
        """Queue this memory for prefaulting, unless it has been freed by then."""
        self._waiting.put(weakref.ref(memory))
        with self._begin:
            if not self._begun:
                self._begun = True
                standby.when_active(self._start)  # Until then the worker that runs has this memory.

    def _start(self) -> None:
        threading.Thread(target=self._run, name="populate", daemon=True).start()

    def _run(self) -> None:
        time.sleep(self._delay)
        populated = True
        while True:
            memory = self._waiting.get()()
            populated = populated and (memory is None or populate(memory))
            del memory


def populate(memory: mmap.mmap) -> bool:
    """Prefault memory now. False, with a line in the log, if the system does not support it: pages
    are then committed on first write."""
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    end = first + len(memory)
    for start in range(first, end, _STEP):
        size, begun = ctypes.c_size_t(min(_STEP, end - start)), time.thread_time()
        if _C.madvise(ctypes.c_void_p(start), size, _POPULATE_WRITE):
            reason = os.strerror(ctypes.get_errno())
            log.info("memory cannot be taken before it is written (%s): then it will be", reason)
            return False
        time.sleep(time.thread_time() - begun)
    return True
