"""Report of a chaos run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import quantiles

from rich.table import Table

from tests.chaos.faults import Fault
from tests.chaos.streams import Outcome, Pause

BROKEN = ("lost", "wrong", "duplicated", "silent")
"""Verdicts that no answer may have."""
QUARANTINED = "request_quarantined"
"""Code of the error of a request that is taken for one that brings workers down."""
_WORST = 8
_AFTER_SECONDS = 1.0
"""A pause that begins so long after a fault has ended is not its doing."""


@dataclass
class Report:
    """Counts of one run."""

    faults: list[Fault]
    outcomes: list[Outcome] = field(default_factory=list)
    jobs: dict[str, list[Outcome]] = field(default_factory=dict)
    """What became of other work, by its kind."""
    leaked: int = 0
    """Pages that are still held at the end; -1 when the system has not come back."""
    handoffs: int = 0
    """Sequences that have passed from worker to worker, since the last start of the scheduler."""

    def verdicts(self) -> Counter[str]:
        """Requests by what became of them."""
        return Counter(outcome.verdict for outcome in self.outcomes)

    @property
    def broken(self) -> int:
        """Requests whose answer is not what it must be, said or unsaid, and leaked pages."""
        found = self.verdicts() + Counter(job.verdict for job in self._all_jobs())
        return sum(found[verdict] for verdict in BROKEN) + abs(self.leaked)

    @property
    def quarantines(self) -> int:
        """Requests that were taken for ones that bring workers down: none does."""
        return sum(QUARANTINED in outcome.detail for outcome in [*self.outcomes, *self._all_jobs()])

    def _all_jobs(self) -> list[Outcome]:
        return [outcome for outcomes in self.jobs.values() for outcome in outcomes]

    @property
    def details(self) -> list[str]:
        """Of what was not whole."""
        found = [*self.outcomes, *self._all_jobs()]
        return [f"{o.verdict}: {o.detail}" for o in found if o.verdict != "whole"][:20]

    def summary(self) -> Table:
        """All requests together."""
        found, total = self.verdicts(), len(self.outcomes)
        made = Table(title=f"{len(self.faults)} faults under load")
        made.add_column("what")
        made.add_column("count", justify="right")
        made.add_row("requests", str(total))
        for verdict in BROKEN:
            made.add_row(verdict, str(found[verdict]))
        made.add_row("clean errors", f"{found['error']} ({found['error'] / max(total, 1):.2%})")
        made.add_row("quarantines", str(self.quarantines))
        for kind, outcomes in self.jobs.items():
            counts = Counter(outcome.verdict for outcome in outcomes).most_common()
            made.add_row(kind, ", ".join(f"{count} {verdict}" for verdict, count in counts))
        made.add_row("connections resumed", str(sum(o.resumed for o in self.outcomes)))
        made.add_row("pages leaked", str(self.leaked))
        made.add_row("sequences handed over", str(self.handoffs))
        stalls = [outcome.stall for outcome in self.outcomes]
        beyond = [self._beyond(outcome) for outcome in self.outcomes]
        made.add_row("longest pause of a stream, p50", seconds(stalls, 50))
        made.add_row("longest pause of a stream, p99", seconds(stalls, 99))
        made.add_row("p99 without the faults' own length", seconds(beyond, 99))
        return made

    def table(self) -> Table:
        """By kind of fault: what it cost the streams that ran when it began."""
        made = Table(title="By kind of fault")
        for name in ("fault", "n", "streams", "p50", "p99", "p99 after its end", *BROKEN, "errors"):
            made.add_column(name, justify="left" if name == "fault" else "right")
        for name in sorted({fault.name for fault in self.faults}):
            made.add_row(*self._row(name))
        made.add_row(*self._rest())
        return made

    def _rest(self) -> list[str]:
        """What no fault can be blamed for: the longest such pause of every stream."""
        own = [[p for p in o.pauses if not self._blamed(p)] for o in self.outcomes]
        pauses = [max((p.seconds for p in found), default=0.0) for found in own]
        spread = [seconds(pauses, 50), seconds(pauses, 99)]
        return ["none", "", str(len(pauses)), *spread, spread[1], *[""] * (len(BROKEN) + 1)]

    def _blamed(self, pause: Pause) -> bool:
        return any(_caused(pause, fault) for fault in self.faults)

    def worst(self) -> Table:
        """The longest pauses: what was broken then, and what the client met with meanwhile."""
        made = Table(title="The longest pauses")
        for name in ("seconds", "faults", "the client"):
            made.add_column(name)
        ends = [(max(o.pauses, key=lambda p: p.seconds), o) for o in self.outcomes if o.pauses]
        for pause, outcome in sorted(ends, key=lambda end: -end[0].seconds)[:_WORST]:
            faults = ", ".join(str(f) for f in self.faults if _caused(pause, f))
            met = [
                (at, what) for at, what in outcome.troubles if pause.started <= at <= pause.ended
            ]
            said = ", ".join(f"{at - pause.started:.1f} s: {what}" for at, what in met)
            made.add_row(f"{pause.seconds:.2f}", faults, said)
        return made

    def _row(self, name: str) -> list[str]:
        faults = [fault for fault in self.faults if fault.name == name]
        hit = [(f, o) for f in faults for o in self.outcomes if o.started <= f.started <= o.ended]
        pauses = [_longest(o, f) for f, o in hit]
        after = [max(0.0, p - f.seconds) for (f, _), p in zip(hit, pauses, strict=True)]
        verdicts = Counter(o.verdict for _, o in hit)
        counts = [str(verdicts[v]) for v in (*BROKEN, "error")]
        spread = [seconds(pauses, 50), seconds(pauses, 99), seconds(after, 99)]
        return [name, str(len(faults)), str(len(hit)), *spread, *counts]

    def _beyond(self, outcome: Outcome) -> float:
        """The longest pause, less what the faults meanwhile took by themselves."""
        return max((self._left(pause) for pause in outcome.pauses), default=0.0)

    def _left(self, pause: Pause) -> float:
        left, at = 0.0, pause.started
        for fault in sorted(self.faults, key=lambda fault: fault.started):
            if fault.ended > at:
                left += max(0.0, min(fault.started, pause.ended) - at)
                at = min(fault.ended, pause.ended)
        return left + pause.ended - at


def _longest(outcome: Outcome, fault: Fault) -> float:
    """The longest pause that this fault can have caused."""
    return max((p.seconds for p in outcome.pauses if _caused(p, fault)), default=0.0)


def _caused(pause: Pause, fault: Fault) -> bool:
    """Whether it can have been this fault."""
    return pause.ended >= fault.started and pause.started <= fault.ended + _AFTER_SECONDS


def seconds(values: Sequence[float], share: int) -> str:
    """A percentile in words."""
    if len(values) < 2:
        return f"{max(values, default=0.0):.2f} s"
    return f"{quantiles(values, n=100)[share - 1]:.2f} s"
