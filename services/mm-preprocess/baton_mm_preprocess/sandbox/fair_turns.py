"""Order in which requests use a process: tenants by the time that they have used, small files
first.

    waits --turn--> first try, short --done--> answered
                          |
                          +--too slow--> waits behind all that have not been slow, then long

Slow files never occupy all places if there are several, so the next small file waits at most for a
first try.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from baton.errors import Unavailable

_MOST_TENANTS = 1024
"""Maximum number of tenants whose time is remembered."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One file that waits or runs."""

    tenant: str
    cost: int
    """Estimated cost, in any unit; only its order of magnitude counts."""
    slow: bool
    number: int

    @property
    def rank(self) -> tuple[int, int]:
        """Order within a tenant: by magnitude, then by arrival."""
        return self.cost.bit_length(), self.number


class FairTurns:
    """Places for a number of processes. Thread-safe. Life cycle: any number of `turn`, `close`."""

    def __init__(self, places: int) -> None:
        self._places, self._most_slow = places, max(1, places - 1)
        self._changed = threading.Condition()
        self._waiting: list[Ticket] = []
        self._running: list[Ticket] = []
        self._served: dict[str, float] = {}
        """Seconds used per tenant, since the least served waiting or running one arrived."""
        self._numbers = count()
        self._closed = False

    @contextmanager
    def turn(self, tenant: str, cost: int, until: float, *, slow: bool = False) -> Iterator[None]:
        """Wait for a place, and hold it within the context.

        Args:
            until: time by `time.monotonic` at which waiting ends.
            slow: it was too slow before.

        Raises:
            Unavailable: its deadline has passed, or this is closed.
        """
        ticket = Ticket(tenant, cost, slow, next(self._numbers))
        self._take(ticket, until)
        started = time.monotonic()
        try:
            yield
        finally:
            self._give(ticket, time.monotonic() - started)

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self, ticket: Ticket, until: float) -> None:
        with self._changed:
            self._lift(ticket.tenant)
            self._waiting.append(ticket)
            try:
                while self._next() is not ticket:
                    left = until - time.monotonic()
                    if self._closed or left <= 0:
                        raise _too_late()
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
            finally:
                self._waiting.remove(ticket)
            self._running.append(ticket)
            self._changed.notify_all()

    def _give(self, ticket: Ticket, seconds: float) -> None:
        with self._changed:
            self._running.remove(ticket)
            self._served[ticket.tenant] = self._served.get(ticket.tenant, 0.0) + seconds
            self._changed.notify_all()

    def _next(self) -> Ticket | None:
        if len(self._running) >= self._places:
            return None
        able = [ticket for ticket in self._waiting if not ticket.slow]
        if not able and sum(ticket.slow for ticket in self._running) < self._most_slow:
            able = self._waiting
        return min(able, key=lambda t: (self._served.get(t.tenant, 0.0), t.rank), default=None)

    def _lift(self, tenant: str) -> None:
        """Account for an arriving tenant, which starts with the time of the least served one."""
        busy = {ticket.tenant for ticket in (*self._waiting, *self._running)}
        if tenant in busy:
            return
        least = min((self._served.get(name, 0.0) for name in busy), default=0.0)
        self._served[tenant] = max(least, self._served.get(tenant, 0.0)) if busy else 0.0
        if len(self._served) > _MOST_TENANTS:
            self._served = {n: s for n, s in self._served.items() if n in busy or n == tenant}


def _too_late() -> Unavailable:
    return Unavailable("Too many media wait to be read. Try again later.", retry_after=5)
