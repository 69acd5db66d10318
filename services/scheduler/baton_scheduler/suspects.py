"""The search for the sequence that brings workers down.

A worker that dies from inside leaves suspects: the rows of its steps in flight. They run again
apart from one another, so that the next death says more than the one before:

    a death of many     -> two halves, which run one after the other, each alone on a worker
    a half dies         -> all others are free, the half is halved
    all halves but one
    get past the place  -> the last one is halved without another death
    one alone dies      -> counted; at `max_worker_losses` it is refused

So one of n rows is alone after log2(n) + 1 deaths, and a trial ends as soon as the suspects have
computed what the dead worker was computing: (request, token log) says what that was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_scheduler.sequence import Cell, Sequence

_MANY_DEATHS = 8
"""Deaths after which a suspect stays apart until it ends, since the cause is not at its mark."""


@dataclass(slots=True, eq=False)
class SuspectSearch:
    """The search after deaths of workers of one model and role."""

    model: str
    role: str
    cells: list[Cell]
    """Groups of suspects that run apart. Only the first can be on trial."""
    epoch: int = 0
    """Epoch of the worker whose cause of death is not known yet; 0 if there is none."""
    in_flight: list[Sequence] = field(default_factory=list)
    """The sequences in its steps in flight."""
    until: float = 0.0
    """Time until which the cause is awaited."""
    patient_until: float = 0.0
    """Time until which an idle worker is awaited."""
    last_worker: str = ""
    """The worker of the last trial."""

    def clear(self) -> None:
        """The last death came from outside. What was known before it still holds."""
        if self.cells and self.cells[0].fresh:
            self.free_all()
        self.epoch, self.in_flight = 0, []

    def bisect(self) -> Sequence | None:
        """One of the sequences in flight caused the death: split them into halves and free all
        others. Returns the sequence if it ran alone."""
        in_flight = [s for s in self.in_flight if not s.ended]
        self.free_all()
        self.epoch, self.in_flight = 0, []
        for sequence in in_flight:
            sequence.deaths += 1
            if sequence.deaths > _MANY_DEATHS:
                sequence.mark = sequence.num_prompt + sequence.sampling.max_tokens + 1
        self.cells = split(in_flight)
        return in_flight[0] if len(in_flight) == 1 else None

    def free_all(self) -> None:
        """Free all suspects."""
        for cell in self.cells:
            cell.free(cell.members)
        self.cells = []

    def narrow(self) -> None:
        """Free sequences that passed their mark; split the last cell that has not run, since it has
        the cause."""
        for cell in self.cells:
            cell.free([s for s in cell.members if s.ended or (cell.worker and s.past_mark)])
        tried = len(self.cells)
        self.cells = [cell for cell in self.cells if cell.members]
        if len(self.cells) == 1 < tried and not self.cells[0].worker:
            self.cells = split(self.cells[0].members)

    def layout(self) -> bytes:
        """Everything as bytes, for the state's digest."""
        cells = [(c.worker, c.fresh, [s.arrival for s in c.members]) for c in self.cells]
        in_flight = [s.arrival for s in self.in_flight]
        times = (self.until, self.patient_until)
        return repr(
            (self.model, self.role, cells, self.epoch, in_flight, times, self.last_worker)
        ).encode()


def split(suspects: list[Sequence]) -> list[Cell]:
    """Two cells of equal size; one of a single suspect, none without suspects."""
    middle = len(suspects) // 2
    halves = (suspects[:middle], suspects[middle:])
    return [Cell.of(half) for half in halves if half]
