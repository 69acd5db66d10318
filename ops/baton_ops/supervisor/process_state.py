"""Detects processes stopped by a signal (SIGSTOP) and not continued.

A missed heartbeat is ambiguous on a busy machine; the process state is not. A stopped process has
state T, unlike one that is slow, starved, asleep or attached to a debugger (t). See proc(5).
"""

from __future__ import annotations

from pathlib import Path

STOPPED_SECONDS = 0.4
"""Default time in seconds that a process may be stopped before it is killed."""


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped; False if it is gone or /proc is unavailable."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2].startswith("T")


class StopDetector:
    """Measures how long a process has been stopped, by polling."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds; infinite disables the check."""
        self._limit, self._since = limit, float("inf")

    def exceeded(self, pid: int, now: float) -> bool:
        """Return whether the process has been stopped for longer than the limit."""
        if self._limit == float("inf") or not is_stopped(pid):
            self._since = float("inf")
            return False
        self._since = min(self._since, now)
        return now - self._since >= self._limit

    def forget(self) -> None:
        """Reset, for a new process."""
        self._since = float("inf")
