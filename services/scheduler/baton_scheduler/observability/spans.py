"""Trace spans of queueing, from the arrival of a sequence to the plan that starts it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from baton.protocol import NewSequence
from baton.telemetry import start

_MOST_WAITING = 4096
"""Maximum number of pending traces; the oldest are dropped and get no span."""


class Spans:
    """Arrival times of traced requests, kept outside the state machine, which has no clock.

    The choices of a request share its trace; the first one to start ends the span.
    """

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def arrived(self, trace: str) -> None:
        """Record the arrival of a sequence with this traceparent."""
        if trace:
            self._since.setdefault(trace, time.time_ns())
            if len(self._since) > _MOST_WAITING:
                del self._since[next(iter(self._since))]

    def started(self, entering: Iterable[NewSequence]) -> None:
        """End the spans of sequences that enter a batch."""
        for new in entering:
            since = self._since.pop(new.trace, None)
            if since is not None:
                start("queue", new.trace, {"baton.request": new.request}, since).end()
