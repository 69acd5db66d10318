"""Reports to the scheduler how processes have exited, which only their parent knows.

The scheduler suspects the requests of a worker only if it crashed (`baton.process.exit_status`),
and waits a second for this report. A worker that ends with its group has the cause of the process
that exited first.
"""

from __future__ import annotations

import time
from collections import deque

from baton.net.curve import CurveKeys
from baton.net.discovery import Directory
from baton.net.handshake import incarnation
from baton.net.sockets import Client
from baton.net.topology import FLEET
from baton.process.exit_status import OomKills, died_inside
from baton.process.lifecycle import EXIT_GROUP, process_id
from baton.protocol import ProcessDied

_SECONDS = 3.0
"""Lifetime of a report: a scheduler that starts later does not know that worker."""
_GROUP_SECONDS = 0.3
"""Longest time between the exits of a group, as seen by a supervisor."""
_MOST_CAUSES = 64


class DeathReports:
    """Life cycle: `add` per exit, `send` repeatedly, `close` once."""

    def __init__(self, where: Directory, keys: CurveKeys | None = None) -> None:
        self._where, self._oom = where, OomKills()
        identity = f"supervisor-{incarnation()}".encode()
        self._client = Client(FLEET, where.first(FLEET), identity, keys)
        self._waiting: deque[tuple[float, ProcessDied]] = deque()
        self._causes: deque[tuple[float, bool]] = deque(maxlen=_MOST_CAUSES)
        """Times of recent exits that were not caused by a group, and whether they were crashes."""
        self._followed: deque[tuple[float, int]] = deque()
        """Processes that have ended with their group, and until when its first exit is awaited."""

    def add(self, pid: int, code: int) -> None:
        """Report a child of this process that exited with `code`, as reported by `subprocess`."""
        inside, now = died_inside(code, short_of_memory=self._oom.more()), time.monotonic()
        if code == EXIT_GROUP:
            self._followed.append((now + _GROUP_SECONDS, pid))
        else:
            self._causes.append((now, inside))
            self._report(pid, inside)
        self.send()

    def _report(self, pid: int, inside: bool) -> None:
        until = time.monotonic() + _SECONDS
        self._waiting.append((until, ProcessDied(process_id(pid), inside)))

    def _report_followed(self) -> None:
        """Report processes that ended with their group, once all its exits have been seen. If none
        preceded them, the cause is unknown, and may be inside."""
        while self._followed and time.monotonic() >= self._followed[0][0]:
            until, pid = self._followed.popleft()
            first = until - 2 * _GROUP_SECONDS
            causes = [inside for when, inside in self._causes if when >= first]
            self._report(pid, not causes or any(causes))

    def send(self) -> None:
        """Send pending reports; drop those that are too old."""
        self._report_followed()
        self._client.follow(self._where.first(FLEET))
        while self._waiting:
            until, message = self._waiting[0]
            if not self._client.send(message) and time.monotonic() < until:
                return
            self._waiting.popleft()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
