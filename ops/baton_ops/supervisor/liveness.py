"""Detects processes whose main loop hangs although they are not stopped.

The loop reports four times a second (`baton.process.watchdog`). Silence alone proves nothing: on an
overloaded machine a healthy process may not run for seconds. So only time in which the main thread
could have reported counts, by its state in proc(5):

    main thread               counted                  because
    S     asleep              the time                 a healthy loop wakes every 0.1 s
    R     running, runnable   the CPU time it got      waiting for a core is not a hang
    D     disk wait           nothing                  it is being swapped in; a kill would not help
    T, t  stopped, traced     nothing                  see `baton_ops.supervisor.process_state`
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from baton.net.handshake import CHECK_SECONDS

HUNG_SECONDS = 10.0
"""Default time in seconds that a loop may hang before its process is killed: well above the longest
healthy iteration, and a third of the time that requests wait for the next scheduler."""


class LivenessProbe(NamedTuple):
    """State of a process's main thread."""

    state: str
    """State letter, as in the table above."""
    seconds: float
    """CPU time so far."""


def probe(pid: int) -> LivenessProbe | None:
    """Return the state; None when the process is gone or /proc is unavailable."""
    try:
        stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(") ")[2].split()
    return LivenessProbe(fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


class HangDetector:
    """Measures how long a process's loop could have reported but did not.

    Starts with the first report, so a slow start is not a hang.
    """

    def __init__(self, limit: float) -> None:
        """`limit`: seconds; infinite disables the check."""
        self._limit = limit
        self._probe: LivenessProbe | None = None
        self._last_check = self._missed_seconds = 0.0
        self._has_reported = False

    @property
    def has_reported(self) -> bool:
        """Whether the loop has ever reported."""
        return self._has_reported

    def exceeded(self, reported: bool, probe: LivenessProbe | None, now: float) -> bool:
        """Return whether the loop has hung for longer than the limit.

        `reported`: whether it has reported since the last call.
        """
        missed = 0.0 if probe is None or self._probe is None else self._missed(probe, now)
        self._probe, self._last_check = probe, now
        self._has_reported = self._has_reported or reported
        self._missed_seconds = 0.0 if reported else self._missed_seconds + missed
        return self._has_reported and self._missed_seconds >= self._limit

    def _missed(self, probe: LivenessProbe, now: float) -> float:
        """Return the countable time since the last check, capped so that gaps in checking do not
        count."""
        assert self._probe is not None
        if probe.state == "R":
            return probe.seconds - self._probe.seconds
        return min(now - self._last_check, CHECK_SECONDS) if probe.state == "S" else 0.0

    def forget(self) -> None:
        """Reset, for a new process."""
        self._probe, self._missed_seconds, self._has_reported = None, 0.0, False
