"""Search for the sequence that crashes workers.

A worker that crashes leaves suspects: the rows of its steps in flight. They run again in separate
groups, so that each crash narrows the search:

    a crash of many     -> two halves, which run one after the other, each alone on a worker
    a half crashes      -> all others are free, the half is halved
    all halves but one
    get past the place  -> the last one is halved without another crash
    one alone crashes   -> counted; at `max_worker_losses` it is refused

So one of n rows is isolated after log2(n) + 1 crashes. A trial ends as soon as the suspects have
computed what the crashed worker was computing, which (request, token log) determines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_scheduler.sequence import Cell, Sequence

_MANY_DEATHS = 8
"""Crashes after which a suspect stays isolated until it ends, since the cause is not at its
mark."""


@dataclass(slots=True, eq=False)
class SuspectSearch:
    """The search after crashes of workers of one model and role."""

    model: str
    role: str
    cells: list[Cell]
    """Groups of suspects that run separately. Only the first can be on trial."""
    epoch: int = 0
    """Epoch of the worker whose exit cause is unknown; 0 if there is none."""
    in_flight: list[Sequence] = field(default_factory=list)
    """The sequences in its steps in flight."""
    until: float = 0.0
    """Time until which the cause is awaited."""
    patient_until: float = 0.0
    """Time until which an idle worker is awaited."""
    last_worker: str = ""
    """The worker of the last trial."""

    def clear(self) -> None:
        """The last worker was lost for an outside cause; earlier findings still hold."""
        if self.cells and self.cells[0].fresh:
            self.free_all()
        self.epoch, self.in_flight = 0, []

    def bisect(self) -> Sequence | None:
        """One of the sequences in flight caused the crash: split them into halves and free all
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
        """Free sequences that passed their mark. If all but one cell have run, the last one has the
        cause and is split."""
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
