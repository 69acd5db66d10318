"""Stopwatch of one request: where its time went, by service and cause.

Every moment since the first byte of a request belongs to exactly one cause. The scheduler reports
the phase times of each choice when it ends; the phases of the choice that ended last split the time
under "engine". So the causes add up to the wall time. Time without a known cause, such as a run
lost with its scheduler, is reported as unattributed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from baton.protocol import PhaseTimes
from baton_gateway.observability.latency_causes import SERVICES, Cause, lifetime, split_engine
from baton_gateway.observability.latency_explanation import (
    ChoiceTimeline,
    LatencyExplanation,
    TimelinePart,
    milliseconds,
    summary,
)


class RequestTimeline:
    """Stopwatch of one request, started under the cause "receive"."""

    __slots__ = (
        "_cause",
        "_choices",
        "_client",
        "_clock",
        "_last",
        "_running",
        "_seconds",
        "_since",
        "_times",
        "_waiting",
        "created",
        "ended",
        "error",
        "id",
        "owner",
        "path",
        "started_at",
        "status",
    )

    def __init__(
        self, id: str = "", path: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.id, self.path, self.owner = id, path, ""
        self.created = int(time.time())
        self.status = ""
        self.error: str | None = None
        self._clock = clock
        self.started_at = self._since = clock()
        self.ended: float | None = None
        self._cause: Cause = "receive"
        self._seconds: dict[str, float] = {}
        self._client = 0.0
        self._choices: dict[int, int] = {}
        """Choice by handle."""
        self._running: set[int] = set()
        """Handles with tokens outstanding."""
        self._waiting: set[int] = set()
        """Handles with text outstanding."""
        self._times: dict[int, PhaseTimes] = {}
        self._last: int | None = None
        """Handle of the choice that received its last token last."""

    def enter(self, cause: Cause) -> None:
        """Charge the time from now on to `cause`. Has no effect after `close`."""
        if self.ended is None and cause != self._cause:
            now = self._clock()
            self._add(now)
            self._since, self._cause = now, cause

    def _add(self, now: float) -> None:
        self._seconds[self._cause] = self._seconds.get(self._cause, 0.0) + now - self._since

    def submitted(self, choices: dict[int, int], cause: Cause = "engine") -> None:
        """Record that the choices, by handle, are being submitted."""
        self._choices = choices
        self._running, self._waiting = set(choices), set(choices)
        if choices:
            self.enter(cause)

    def scheduler_lost(self) -> None:
        """Record that the scheduler was lost; its share so far becomes unattributed."""
        if self._cause == "engine":
            self.enter("no_scheduler")
            seconds = self._seconds.pop("engine", 0.0)
            self._seconds["unattributed"] = self._seconds.get("unattributed", 0.0) + seconds

    def resumed(self) -> None:
        """Record that a scheduler has accepted the request again."""
        if self._cause == "no_scheduler":
            self.enter("engine")

    def sampled(self, handle: int) -> None:
        """Record that all tokens of a choice have arrived."""
        if handle in self._running:
            self._running.discard(handle)
            self._last = handle
            if not self._running:
                self.enter("detokenise")

    def delivered(self, handle: int) -> None:
        """Record that all text of a choice has arrived; after a stop string, possibly before its
        last tokens."""
        self.sampled(handle)
        self._waiting.discard(handle)
        if not self._waiting:
            self.enter("respond")

    def estimated(self, handle: int, times: PhaseTimes) -> None:
        """Record the scheduler's phase times of a choice, possibly after the end."""
        self._times[handle] = times

    def sent(self, started_at: float) -> None:
        """Record that the client accepted a chunk whose sending started at `started_at`. Counts as
        client time only while nothing but the response is left to do."""
        if self._cause == "respond" and self.ended is None:
            self._client += self._clock() - max(started_at, self._since)

    def failed(self, code: str | None) -> None:
        """Record the error code that ended the request."""
        if self.ended is None:
            self.error = code

    def now(self) -> float:
        """Return the time of this clock, in seconds."""
        return self._clock()

    @property
    def handles(self) -> Iterable[int]:
        """Return the scheduler handles of the choices."""
        return self._choices

    def close(self, status: str) -> None:
        """Record the end of the response."""
        if self.ended is None:
            self.ended, self.status = self._clock(), status
            self._add(self.ended)

    def explain(self) -> LatencyExplanation:
        """Return the breakdown so far."""
        now = self._clock() if self.ended is None else self.ended
        critical = self._critical()
        times = None if critical is None else self._times[critical]
        seconds, wall = self._causes(now, times), now - self.started_at
        parts = [TimelinePart.of(c, seconds[c], wall) for c in SERVICES if c in seconds]
        return LatencyExplanation(
            id=self.id,
            created=self.created,
            path=self.path,
            state="running" if self.ended is None else "ended",
            status=self.status,
            error=self.error,
            wall_ms=milliseconds(wall),
            causes=parts,
            unattributed_ms=milliseconds(seconds.get("unattributed", 0.0)),
            choice=None if critical is None else self._choices[critical],
            choices=[
                ChoiceTimeline.of(self._choices[h], t) for h, t in sorted(self._times.items())
            ],
            summary=summary(parts, times),
        )

    def _causes(self, now: float, times: PhaseTimes | None) -> dict[str, float]:
        """Return the seconds of each cause until now; `times` are the phase times of the last
        choice."""
        seconds = dict(self._seconds)
        if self.ended is None:
            seconds[self._cause] = seconds.get(self._cause, 0.0) + now - self._since
        if self._client:
            seconds["respond"] -= self._client
            seconds["client"] = self._client
        if times is not None:
            seconds |= split_engine(times, seconds.pop("engine", 0.0))
        elif self.ended is not None:
            engine = seconds.pop("engine", 0.0)
            seconds["unattributed"] = seconds.get("unattributed", 0.0) + engine
        return seconds

    def _critical(self) -> int | None:
        """Return the handle of the choice that determined the latency, once its times are known."""
        if self.ended is None and self._cause in ("engine", "no_scheduler"):
            return None
        if self._last in self._times:
            return self._last
        return max(self._times, key=lambda handle: lifetime(self._times[handle]), default=None)
