"""Where the time of one sequence goes, from its arrival to its end, in the state's time.

    queued --place--> prefill --token--> decode --------------------------------------> end
                                         ^    |
                                       token  +-- preempted | worker lost | handed over
                                         |                |
                                         +----------------+

Every moment belongs to exactly one phase, so the phases add up to the life. What a sequence loses
by leaving its worker lasts until its next token: it waits, and its keys are computed again. Before
its first token that is only the wait: the prefill was still to be done.
"""

from __future__ import annotations

from enum import IntEnum

from baton.protocol import PhaseTimes


class Phase(IntEnum):
    """What a sequence is doing, or what keeps it from it. In the order of `PhaseTimes`."""

    QUEUED = 0
    PREFILL = 1
    DECODE = 2
    PREEMPTED = 3
    LOST = 4
    MOVED = 5


class PhaseTimer:
    """The account of one sequence. It is touched when the sequence changes its place or begins to
    give tokens, never by a step."""

    __slots__ = ("_phase", "_seconds", "_since", "_started", "leaves", "rows", "steps", "worker")

    def __init__(self, now: float) -> None:
        self._phase, self._since = Phase.QUEUED, now
        self._seconds = [0.0] * len(Phase)
        self._started = False
        self.leaves = [0] * len(Phase)
        """Per phase, how often the sequence has left a worker for it."""
        self.worker = ""
        """Who had it last."""
        self.steps = self.rows = 0
        """Steps of the workers that it was on, and the rows of all of them together."""

    @property
    def phase(self) -> Phase:
        """What it is doing now."""
        return self._phase

    @property
    def mark(self) -> tuple[int, float]:
        """What it is doing, as a number, and since when; for the state's digest."""
        return int(self._phase), self._since

    @property
    def started(self) -> bool:
        """It has had a token."""
        return self._started

    def placed(self, now: float, worker: str = "") -> None:
        """A worker has it. Without a token so far it is its prefill that runs now."""
        self.worker = worker
        if not self._started:
            self._enter(Phase.PREFILL, now)

    def token(self, now: float) -> None:
        """The first token since it was placed has come."""
        self._started = True
        self._enter(Phase.DECODE, now)

    def left(self, why: Phase, now: float) -> None:
        """It has left its worker: it was preempted, its worker was lost, or it changed over."""
        self.leaves[why] += 1
        self._enter(why, now)

    def shared(self, steps: int, rows: int) -> None:
        """A worker ran so many steps, of so many rows together, while it had the sequence."""
        self.steps += steps
        self.rows += rows

    def times(self, now: float, steps: int = 0, rows: int = 0) -> PhaseTimes:
        """The account as of now; `steps` and `rows` are those of the worker that still has it."""
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
        )

    def _enter(self, phase: Phase, now: float) -> None:
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now
