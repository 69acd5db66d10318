"""Trace spans of waiting: from the arrival of a sequence to the plan that starts it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from baton.protocol import NewSequence
from baton.telemetry import start

_MOST_WAITING = 4096
"""Traces that are remembered. Of more, the oldest are forgotten: they get no span."""


class Spans:
    """When traced requests arrived. Lives outside the state machine, which has no clock.

    The choices of a request share its trace; the span ends with the first of them that starts.
    """

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def arrived(self, trace: str) -> None:
        """A sequence with this traceparent has come in."""
        if trace:
            self._since.setdefault(trace, time.time_ns())
            if len(self._since) > _MOST_WAITING:
                del self._since[next(iter(self._since))]

    def started(self, entering: Iterable[NewSequence]) -> None:
        """These sequences enter a batch with the plan that is being sent."""
        for new in entering:
            since = self._since.pop(new.trace, None)
            if since is not None:
                start("queue", new.trace, {"baton.request": new.request}, since).end()
