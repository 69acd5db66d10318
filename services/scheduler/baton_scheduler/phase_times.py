"""Time that a sequence spends in each phase, from arrival to end, in the state's time.

    queued --place--> prefill --token--> decode --------------------------------------> end
                                         ^    |
                                       token  +-- preempted | worker lost | handed over
                                         |                |
                                         +----------------+

Every moment belongs to exactly one phase, so the phases add up to the total. The phase after
leaving a worker lasts until the next token: it covers the wait and the recomputation. Before the
first token it covers only the wait, since the prefill was still to be done.
"""

from __future__ import annotations

from enum import IntEnum

from baton.protocol import PhaseTimes


class Phase(IntEnum):
    """Phases of a sequence, in the order of `PhaseTimes`."""

    QUEUED = 0
    PREFILL = 1
    DECODE = 2
    PREEMPTED = 3
    LOST = 4
    MOVED = 5


class PhaseTimer:
    """Phase timer of one sequence. It is updated on placement and first tokens, never per step."""

    __slots__ = (
        "_phase",
        "_seconds",
        "_since",
        "_started",
        "accepted",
        "drafted",
        "leaves",
        "rows",
        "steps",
        "weights",
        "worker",
    )

    def __init__(self, now: float) -> None:
        self._phase, self._since = Phase.QUEUED, now
        self._seconds = [0.0] * len(Phase)
        self._started = False
        self.leaves = [0] * len(Phase)
        """Per phase: how often the sequence entered it by leaving a worker."""
        self.worker = ""
        """Name of the last worker of the sequence."""
        self.weights: list[tuple[int, str]] = []
        """Index of an output token -> version of the weights from that token on."""
        self.steps = self.rows = 0
        """Total steps and rows of its workers during its stay."""
        self.drafted = self.accepted = 0
        """Total draft tokens that its workers verified and accepted."""

    @property
    def phase(self) -> Phase:
        """Current phase."""
        return self._phase

    @property
    def mark(self) -> tuple[int, float]:
        """Number of the current phase and its start time, for the state's digest."""
        return int(self._phase), self._since

    @property
    def started(self) -> bool:
        """True if it has had a token."""
        return self._started

    def place(self, now: float, worker: str = "") -> None:
        """A worker has taken the sequence; without a token so far, the prefill phase starts."""
        self.worker = worker
        if not self._started:
            self._enter(Phase.PREFILL, now)

    def computed_with(self, version: str, index: int) -> None:
        """Output tokens from `index` on come from this version of the weights."""
        if not self.weights or self.weights[-1][1] != version:
            self.weights.append((index, version))

    def token(self, now: float) -> None:
        """Record the first token since placement."""
        self._started = True
        self._enter(Phase.DECODE, now)

    def leave(self, why: Phase, now: float) -> None:
        """Record that the sequence left its worker by preemption, worker loss or handoff."""
        self.leaves[why] += 1
        self._enter(why, now)

    def add_steps(self, steps: int, rows: int) -> None:
        """Add steps and rows that a worker ran while it had the sequence."""
        self.steps += steps
        self.rows += rows

    def add_drafts(self, drafted: int, accepted: int) -> None:
        """Add draft tokens that a worker verified, and accepted, while it had the sequence."""
        self.drafted += drafted
        self.accepted += accepted

    def times(
        self, now: float, steps: int = 0, rows: int = 0, drafted: int = 0, accepted: int = 0
    ) -> PhaseTimes:
        """Times as of `now`; the counts are those of the current worker."""
        seconds = list(self._seconds)
        seconds[self._phase] += now - self._since
        queued, prefill, decode, preempted, lost, moved = seconds
        steps, rows = self.steps + steps, self.rows + rows
        return PhaseTimes(
            queued=queued,
            prefill=prefill,
            decode=decode,
            preempted=preempted,
            worker_loss=lost,
            handover=moved,
            preemptions=self.leaves[Phase.PREEMPTED],
            losses=self.leaves[Phase.LOST],
            handovers=self.leaves[Phase.MOVED],
            batch_neighbours=max(0.0, rows / steps - 1) if steps else 0.0,
            worker=self.worker,
            draft_tokens=self.drafted + drafted,
            accepted_tokens=self.accepted + accepted,
            weights=tuple(self.weights),
        )

    def _enter(self, phase: Phase, now: float) -> None:
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now
