"""Tells the scheduler how processes have ended: only their parent sees it.

The scheduler suspects the requests of a worker only if it died from inside
(`baton.process.exit_status`), and waits a second for this word.
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
from baton.process.lifecycle import process_id
from baton.protocol import ProcessDied

_SECONDS = 3.0
"""How long a report is worth sending: a scheduler that comes later knows nothing of that worker."""


class DeathReports:
    """Life cycle: `add` per death, `send` often, `close` once."""

    def __init__(self, where: Directory, keys: CurveKeys | None = None) -> None:
        self._where, self._oom = where, OomKills()
        identity = f"supervisor-{incarnation()}".encode()
        self._client = Client(FLEET, where.first(FLEET), identity, keys)
        self._waiting: deque[tuple[float, ProcessDied]] = deque()

    def add(self, pid: int, code: int) -> None:
        """Report a child of this process that ended with `code`, as `subprocess` says it."""
        inside = died_inside(code, short_of_memory=self._oom.more())
        until = time.monotonic() + _SECONDS
        self._waiting.append((until, ProcessDied(process_id(pid), inside)))
        self.send()

    def send(self) -> None:
        """Send what waits for a connection; what has become too old is dropped."""
        self._client.follow(self._where.first(FLEET))
        while self._waiting:
            until, message = self._waiting[0]
            if not self._client.send(message) and time.monotonic() < until:
                return
            self._waiting.popleft()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
