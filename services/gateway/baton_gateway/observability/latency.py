"""Latency breakdown of recent requests by service and cause.

    receive -> admission -> encode -> engine ----------------------> detokenise -> respond, client
                                        |
                                        transport, queue, prefill, decode, ... (from the scheduler)

Every moment since the first byte of a request belongs to exactly one cause. The scheduler reports
the phase times of each choice when it ends; the phases of the choice that ended last split the time
under "engine". So the causes add up to the wall time. Time without a known cause, such as a run
lost with its scheduler, is reported as unattributed.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from baton.protocol import PhaseTimes

Cause: TypeAlias = Literal[
    "receive",
    "admission",
    "grammar",
    "encode",
    "beam_search",
    "engine",
    "no_scheduler",
    "detokenise",
    "respond",
]
"""Causes that the gateway measures:

receive       the body was read and checked
admission     it waited for a worker, a tokenizer or the limits of its key
grammar       its grammar was compiled
encode        a tokenizer rendered and encoded the prompts
beam_search   all steps of a beam search
engine        it was with the scheduler
no_scheduler  it waited for a scheduler to become available
detokenise    all tokens had arrived, and a tokenizer decoded the last of them
respond       all text had arrived, and the response was written
"""

_SERVICES = {
    "receive": "gateway",
    "admission": "gateway",
    "grammar": "gateway",
    "encode": "tokenizer",
    "beam_search": "scheduler",
    "no_scheduler": "scheduler",
    "transport": "network",
    "queue": "scheduler",
    "prefill": "worker",
    "handover": "worker",
    "decode": "worker",
    "preempted": "scheduler",
    "worker_loss": "worker",
    "engine": "scheduler",
    "detokenise": "tokenizer",
    "respond": "gateway",
    "client": "client",
}
"""Service responsible for each cause, in display order."""

_PHASES = {
    "queue": "queued",
    "prefill": "prefill",
    "handover": "handover",
    "decode": "decode",
    "preempted": "preempted",
    "worker_loss": "worker_loss",
}
"""Causes that the scheduler reports, with their fields of `PhaseTimes`."""
_TRIMMED = ("decode", "preempted", "worker_loss", "handover", "prefill", "queue")
"""Phases that are shortened, in this order, by scheduler time after the response was complete."""


class TimelinePart(msgspec.Struct, frozen=True):
    """One cause and its time."""

    cause: str
    service: str
    ms: float
    share: float
    """Fraction of the wall time."""


class ChoiceTimeline(msgspec.Struct, frozen=True):
    """Scheduler times of one choice, in milliseconds from its arrival to its end."""

    choice: int
    queue_ms: float
    prefill_ms: float
    handover_ms: float
    decode_ms: float
    preempted_ms: float
    worker_loss_ms: float
    preemptions: int
    worker_losses: int
    handovers: int
    shared_with: float
    """Mean number of other rows in the steps of its workers."""
    worker: str
    """Last worker that ran the choice; empty if none did."""


class LatencyExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Response of GET /v1/requests/{id}/explain."""

    id: str
    object: str = "request.explanation"
    created: int
    path: str
    state: str
    """running | ended"""
    status: str
    """HTTP status of the response; 499 after a client disconnect, empty while there is none."""
    error: str | None
    """Code of the error that ended the request."""
    wall_ms: float
    causes: list[TimelinePart]
    unattributed_ms: float
    """Wall time without a known cause."""
    choice: int | None
    """The choice that ended last; `causes` contains its times."""
    choices: list[ChoiceTimeline]
    summary: str


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
        "began",
        "created",
        "ended",
        "error",
        "id",
        "owner",
        "path",
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
        self.began = self._since = clock()
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

    def held(self) -> None:
        """Record that the scheduler was lost; its share so far becomes unattributed."""
        if self._cause == "engine":
            self.enter("no_scheduler")
            lost = self._seconds.pop("engine", 0.0)
            self._seconds["unattributed"] = self._seconds.get("unattributed", 0.0) + lost

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

    def sent(self, began: float) -> None:
        """Record that the client accepted a chunk sent at `began`. Counts as client time only while
        nothing but the response is left to do."""
        if self._cause == "respond" and self.ended is None:
            self._client += self._clock() - max(began, self._since)

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
        seconds, wall = self._causes(now, times), now - self.began
        parts = [_part(cause, seconds[cause], wall) for cause in _SERVICES if cause in seconds]
        return LatencyExplanation(
            id=self.id,
            created=self.created,
            path=self.path,
            state="running" if self.ended is None else "ended",
            status=self.status,
            error=self.error,
            wall_ms=_ms(wall),
            causes=parts,
            unattributed_ms=_ms(seconds.get("unattributed", 0.0)),
            choice=None if critical is None else self._choices[critical],
            choices=[_run(self._choices[handle], t) for handle, t in sorted(self._times.items())],
            summary=_summary(parts, times),
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
            seconds |= _split(times, seconds.pop("engine", 0.0))
        elif self.ended is not None:
            lost = seconds.pop("engine", 0.0)
            seconds["unattributed"] = seconds.get("unattributed", 0.0) + lost
        return seconds

    def _critical(self) -> int | None:
        """Return the handle of the choice that determined the latency, once its times are known."""
        if self.ended is None and self._cause in ("engine", "no_scheduler"):
            return None
        if self._last in self._times:
            return self._last
        return max(self._times, key=lambda handle: _life(self._times[handle]), default=None)


class TimelineStore:
    """Timelines of the latest requests, at most `size`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._accounts: OrderedDict[str, RequestTimeline] = OrderedDict()
        self._owed: dict[int, RequestTimeline] = {}
        """Timelines by handle whose phase times are outstanding."""

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def owed(self) -> int:
        """Number of choices whose phase times are outstanding."""
        return len(self._owed)

    def keep(self, account: RequestTimeline, owner: str) -> None:
        """Store the timeline of a request; evicts the oldest when full."""
        account.owner = owner
        self._accounts[_number(account.id)] = account
        while len(self._accounts) > self._size:
            _, old = self._accounts.popitem(last=False)
            self._forget(old)

    def submitted(self, account: RequestTimeline, choices: dict[int, int]) -> None:
        """Record that choices of a request, by handle, were submitted."""
        account.submitted(choices)
        if _number(account.id) in self._accounts:
            self._owed |= dict.fromkeys(choices, account)

    def told(self, times: Iterable[tuple[int, PhaseTimes]]) -> None:
        """Record phase times reported by a scheduler."""
        for handle, spent in times:
            account = self._owed.pop(handle, None)
            if account is not None:
                account.estimated(handle, spent)

    def find(self, name: str, owner: str) -> RequestTimeline | None:
        """Return the timeline of a request of `owner`, by any of its ids."""
        account = self._accounts.get(_number(name))
        return account if account is not None and account.owner == owner else None

    def _forget(self, account: RequestTimeline) -> None:
        for handle in account.handles:
            self._owed.pop(handle, None)


def _number(name: str) -> str:
    """Return the part that all ids of a request share: req_0f..., chatcmpl-0f..., cmpl-0f..."""
    return name.replace("-", "_").rpartition("_")[2]


def _split(times: PhaseTimes, engine: float) -> dict[str, float]:
    """Split the time under "engine" into the scheduler's phases and transport."""
    found = {cause: getattr(times, field) for cause, field in _PHASES.items()}
    rest = engine - sum(found.values())
    for cause in _TRIMMED:
        if rest >= 0:
            break
        less = min(found[cause], -rest)
        found[cause] -= less
        rest += less
    always = ("queue", "prefill", "decode")
    return {c: s for c, s in found.items() if s or c in always} | {"transport": max(0.0, rest)}


def _life(times: PhaseTimes) -> float:
    return float(sum(getattr(times, field) for field in _PHASES.values()))


def _part(cause: str, seconds: float, wall: float) -> TimelinePart:
    return TimelinePart(
        cause, _SERVICES[cause], _ms(seconds), round(seconds / wall, 4) if wall else 0.0
    )


def _run(choice: int, times: PhaseTimes) -> ChoiceTimeline:
    spent = {f"{cause}_ms": _ms(getattr(times, field)) for cause, field in _PHASES.items()}
    return ChoiceTimeline(
        choice=choice,
        preemptions=times.preemptions,
        worker_losses=times.losses,
        handovers=times.handovers,
        shared_with=round(times.batch_neighbours, 2),
        worker=times.worker,
        **spent,
    )


def _summary(parts: list[TimelinePart], times: PhaseTimes | None) -> str:
    """Return the largest causes in one line."""
    greatest = sorted(parts, key=lambda part: -part.ms)[:3]
    words = [f"{part.cause} {100 * part.share:.0f} %" for part in greatest if part.ms]
    if times is not None and times.batch_neighbours:
        words.append(f"its steps were shared with {times.batch_neighbours:.1f} others")
    return ", ".join(words)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
