"""Where the time of requests went, for the latest of them: service by service, cause by cause.

    receive -> admission -> encode -> engine ----------------------> detokenise -> respond, client
                                        |
                                        transport, queue, prefill, decode, ... as the scheduler says

The gateway stops the time of each request: every moment since its first byte belongs to one cause.
Of the time that a request is with the scheduler, the scheduler tells at the end what it was, for
every choice; the choice that ended last is the one that the answer waited for, and its account is
that of the request. So the causes add up to the wall time. What nobody can account for, as the
first part of a run whose scheduler was lost, is reported as such.
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
"""What the gateway itself can tell apart:

receive       the body was read and checked
admission     it waited for a worker, a tokenizer or the limits of its key
grammar       its grammar was compiled
encode        a tokenizer rendered and encoded the prompts
beam_search   all steps of a beam search
engine        it was with the scheduler
no_scheduler  it waited for a scheduler, or for the next one
detokenise    all tokens were there, and a tokenizer made text of the last
respond       all text was there, and the answer was written
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
"""Who a cause lies with, in the order in which causes are told."""

_PHASES = {
    "queue": "queued",
    "prefill": "prefill",
    "handover": "handover",
    "decode": "decode",
    "preempted": "preempted",
    "worker_loss": "worker_loss",
}
"""Causes that the scheduler tells apart, by their fields of `PhaseTimes`."""
_TRIMMED = ("decode", "preempted", "worker_loss", "handover", "prefill", "queue")
"""From which of them it is taken what a scheduler did after the answer was complete."""


class TimelinePart(msgspec.Struct, frozen=True):
    """One cause."""

    cause: str
    service: str
    ms: float
    share: float
    """Of the wall time."""


class ChoiceTimeline(msgspec.Struct, frozen=True):
    """One choice at the scheduler, in milliseconds from its arrival there to its end."""

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
    """The one that it ran on, the last of them if there were several; empty when none had it."""


class LatencyExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/requests/{id}/explain."""

    id: str
    object: str = "request.explanation"
    created: int
    path: str
    state: str
    """running | ended"""
    status: str
    """HTTP status of the answer; 499 when the client left, empty while there is none."""
    error: str | None
    """Code of the error that ended its run."""
    wall_ms: float
    causes: list[TimelinePart]
    unattributed_ms: float
    """Of the wall time: nobody can say what it was."""
    choice: int | None
    """The choice that ended last: its times are in `causes`."""
    choices: list[ChoiceTimeline]
    summary: str


class RequestTimeline:
    """The stopwatch of one request. It begins with it, under the cause "receive"."""

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
        """Handle to choice."""
        self._running: set[int] = set()
        """Handles whose tokens are not all there."""
        self._waiting: set[int] = set()
        """Handles whose text is not all there."""
        self._times: dict[int, PhaseTimes] = {}
        self._last: int | None = None
        """Handle of the choice that was the last to have all its tokens."""

    def enter(self, cause: Cause) -> None:
        """From now on its time goes there. What comes after its end changes nothing."""
        if self.ended is None and cause != self._cause:
            now = self._clock()
            self._add(now)
            self._since, self._cause = now, cause

    def _add(self, now: float) -> None:
        self._seconds[self._cause] = self._seconds.get(self._cause, 0.0) + now - self._since

    def submitted(self, choices: dict[int, int], cause: Cause = "engine") -> None:
        """The choices that are to run, by handle, are on their way."""
        self._choices = choices
        self._running, self._waiting = set(choices), set(choices)
        if choices:
            self.enter(cause)

    def held(self) -> None:
        """No scheduler has it. Of what the last one did with it, nothing will be known."""
        if self._cause == "engine":
            self.enter("no_scheduler")
            lost = self._seconds.pop("engine", 0.0)
            self._seconds["unattributed"] = self._seconds.get("unattributed", 0.0) + lost

    def resumed(self) -> None:
        """A scheduler has it again."""
        if self._cause == "no_scheduler":
            self.enter("engine")

    def sampled(self, handle: int) -> None:
        """All tokens of a choice are there."""
        if handle in self._running:
            self._running.discard(handle)
            self._last = handle
            if not self._running:
                self.enter("detokenise")

    def delivered(self, handle: int) -> None:
        """All text of a choice is there, though perhaps not all its tokens: of a stop string."""
        self.sampled(handle)
        self._waiting.discard(handle)
        if not self._waiting:
            self.enter("respond")

    def estimated(self, handle: int, times: PhaseTimes) -> None:
        """The scheduler's account of a choice has come, perhaps after the end."""
        self._times[handle] = times

    def sent(self, began: float) -> None:
        """A piece of the answer that was sent at `began` has been taken by the client. Only when
        nothing else is left to do has the answer waited for it."""
        if self._cause == "respond" and self.ended is None:
            self._client += self._clock() - max(began, self._since)

    def failed(self, code: str | None) -> None:
        """Its run has ended in an error of this code."""
        if self.ended is None:
            self.error = code

    def now(self) -> float:
        """The time on its clock."""
        return self._clock()

    @property
    def handles(self) -> Iterable[int]:
        """Its choices as the scheduler knows them."""
        return self._choices

    def close(self, status: str) -> None:
        """The answer is over."""
        if self.ended is None:
            self.ended, self.status = self._clock(), status
            self._add(self.ended)

    def explain(self) -> LatencyExplanation:
        """Its account, as far as it has come."""
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
        """Seconds of each cause, until now; `times` are those of the choice that counts."""
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
        """Handle of the choice that the answer waited for, once its times are known."""
        if self.ended is None and self._cause in ("engine", "no_scheduler"):
            return None
        if self._last in self._times:
            return self._last
        return max(self._times, key=lambda handle: _life(self._times[handle]), default=None)


class TimelineStore:
    """The accounts of the latest requests, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._accounts: OrderedDict[str, RequestTimeline] = OrderedDict()
        self._owed: dict[int, RequestTimeline] = {}
        """By handle, those that a scheduler is still to tell something of."""

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def owed(self) -> int:
        """Choices of which a scheduler is still to tell something."""
        return len(self._owed)

    def keep(self, account: RequestTimeline, owner: str) -> None:
        """Remember a request of this owner; the oldest makes room."""
        account.owner = owner
        self._accounts[_number(account.id)] = account
        while len(self._accounts) > self._size:
            _, old = self._accounts.popitem(last=False)
            self._forget(old)

    def submitted(self, account: RequestTimeline, choices: dict[int, int]) -> None:
        """Choices of a request, by handle, go to the scheduler."""
        account.submitted(choices)
        if _number(account.id) in self._accounts:
            self._owed |= dict.fromkeys(choices, account)

    def told(self, times: Iterable[tuple[int, PhaseTimes]]) -> None:
        """A scheduler says where the time of choices went."""
        for handle, spent in times:
            account = self._owed.pop(handle, None)
            if account is not None:
                account.estimated(handle, spent)

    def find(self, name: str, owner: str) -> RequestTimeline | None:
        """The account of a request of this owner, by any of its ids."""
        account = self._accounts.get(_number(name))
        return account if account is not None and account.owner == owner else None

    def _forget(self, account: RequestTimeline) -> None:
        for handle in account.handles:
            self._owed.pop(handle, None)


def _number(name: str) -> str:
    """What the ids of one request share: req_0f..., chatcmpl-0f..., cmpl-0f..."""
    return name.replace("-", "_").rpartition("_")[2]


def _split(times: PhaseTimes, engine: float) -> dict[str, float]:
    """What became of the time with the scheduler."""
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
    """The greatest causes in one line."""
    greatest = sorted(parts, key=lambda part: -part.ms)[:3]
    words = [f"{part.cause} {100 * part.share:.0f} %" for part in greatest if part.ms]
    if times is not None and times.batch_neighbours:
        words.append(f"its steps were shared with {times.batch_neighbours:.1f} others")
    return ", ".join(words)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
