"""Time limits of a child process for one request."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_WALL_FACTOR = 10
"""Wall time limit as a multiple of the processor time limit."""
_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12
"""Fields of /proc/PID/stat after the program's name."""


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far, over all its threads.

    Raises `OSError` if there is no such process, or no /proc.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


class TimeLimit:
    """Context with a time limit for a process; a thread stops the process at the limit.

    Processor time counts, since a busy machine delays a process: the load of others must not make
    its work exceed the limit. A process that waits is stopped after ten times as much wall time.
    """

    def __init__(
        self, pid: int, seconds: float, stop: Callable[[], None], *, wall: bool = False
    ) -> None:
        """Args:
        seconds: of processor time.
            stop: ends the process.
            wall: count wall time instead, which also applies if processor time cannot be read.
        """
        self.exceeded = False
        """Whether the process was stopped."""
        self._pid, self._seconds, self._stop = pid, seconds, stop
        self._over = threading.Event()
        self._began = time.monotonic()
        self._used_before = None if wall else _used(pid)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._remaining()):
            if self._remaining() <= 0:
                self.exceeded = True
                self._stop()
                return

    def _remaining(self) -> float:
        """Minimum seconds until the limit; 0 if it is reached."""
        passed = time.monotonic() - self._began
        used = None if self._used_before is None else _used(self._pid)
        if used is None or self._used_before is None:
            return max(0.0, self._seconds - passed)
        if passed >= _WALL_FACTOR * self._seconds:
            return 0.0
        return max(0.0, self._seconds - (used - self._used_before))


def _used(pid: int) -> float | None:
    try:
        return cpu_seconds(pid)
    except OSError:
        return None
