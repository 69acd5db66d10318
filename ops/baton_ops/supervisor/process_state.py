"""A process that was stopped, as by SIGSTOP, and not continued: as good as dead, for its clients.

A missed heartbeat is a guess, that on a busy machine is often wrong. The system knows: a stopped
process has the state T, one that is slow, starved or asleep has not, and neither has one that a
debugger has attached to (t). See proc(5).
"""

from __future__ import annotations

from pathlib import Path

STOPPED_SECONDS = 0.4
"""How long a process may be stopped before it is given up, by default: it was no accident."""


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped now; False where it is gone, or the system does not tell."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return found.rpartition(") ")[2].startswith("T")


class StopDetector:
    """For how long a process has been stopped, whenever it was looked at."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds; infinite for one that is never given up."""
        self._patience, self._since = patience, float("inf")

    def over(self, pid: int, now: float) -> bool:
        """Whether it has been stopped for so long that nobody should wait for it."""
        if self._patience == float("inf") or not is_stopped(pid):
            self._since = float("inf")
            return False
        self._since = min(self._since, now)
        return now - self._since >= self._patience

    def forget(self) -> None:
        """The next one that is looked at is another process."""
        self._since = float("inf")
