"""A file descriptor that becomes readable when a copy to the host has ended, to wait for it beside
sockets."""

from __future__ import annotations

import contextlib
import os
import threading
from queue import SimpleQueue

from baton_worker.platform.device_link import Download


class DownloadSignal:
    """Waits for downloads in a thread of its own: to look at them every so often would be as late
    as the timers of the machine, which may have a resolution of milliseconds."""

    def __init__(self) -> None:
        self._file = -1
        self._downloads: SimpleQueue[Download] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._watched: Download | None = None
        self._ended: Download | None = None

    def of(self, download: Download) -> int | None:
        """A file descriptor that becomes readable when the download has ended, which stays valid
        until the next call; None if it has ended."""
        self._start()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._file)  # Of a download before.
        if download is not self._watched:
            self._watched = download
            self._downloads.put(download)
        return None if self._ended is download else self._file

    def _start(self) -> None:
        if self._thread is None:
            self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._thread = threading.Thread(target=self._run, name="downloads", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            download = self._downloads.get()
            download.wait()
            # In this order: a reader drains the descriptor first and reads `_ended` after that.
            self._ended = download
            os.eventfd_write(self._file, 1)
