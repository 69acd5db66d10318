"""A worker has died: who was there is suspected, tried apart from others, and freed or refused.

outside: nobody is suspected
unknown: the suspects wait until a supervisor tells, or does not
inside:  `Inquiry.convict`, then trials; see `baton_scheduler.suspects`
"""

from __future__ import annotations

from baton_scheduler import errors
from baton_scheduler.events import Cause, DeathExplained, Decision
from baton_scheduler.sequence import Cell, Sequence
from baton_scheduler.state.base import StateBase
from baton_scheduler.suspects import Inquiry
from baton_scheduler.workers.worker import Worker

VERDICT_SECONDS = 1.0
"""How long to wait for a supervisor that sees the exit status."""
_IDLE_SECONDS = 5.0
"""How long to wait for a worker without work before the work of one is set aside for a trial."""


def suspects(worker: Worker) -> list[Sequence]:
    """The sequences in steps in flight, each with its mark: past all of these steps."""
    batch, there = worker.batch, list[Sequence]()
    most = 1 + worker.info.num_speculative_tokens
    for slot in batch.occupied():
        lease = int(batch.lease_id[slot])
        if worker.flights.run(slot, lease):
            sampling = sum(slot in f.sampling and f.owners[slot] == lease for f in worker.flights)
            sequence = batch.at(slot)
            sequence.mark = max(sequence.mark, len(sequence.log) + most * max(1, sampling))
            there.append(sequence)
    return there


def worker_died(
    state: StateBase, worker: Worker, there: list[Sequence], cause: Cause
) -> list[Decision]:
    """Suspect those who were there, unless the death came from outside. All are queued again."""
    trial, worker.trial = worker.trial, None
    if trial is not None:
        trial.worker = ""
        there = [sequence for sequence in there if sequence.cell is trial]
    if cause == "outside" or not there:
        return []
    inquiry = _inquiry(state, worker, trial, there)
    inquiry.epoch, inquiry.accused = worker.epoch, there
    inquiry.patient_until = state.now + _IDLE_SECONDS
    told = cause == "inside" or not worker.info.supervised
    inquiry.until = state.now if told else state.now + VERDICT_SECONDS
    return _convict(state, inquiry) if told else []


def _inquiry(
    state: StateBase, worker: Worker, trial: Cell | None, there: list[Sequence]
) -> Inquiry:
    """The search that the trial belongs to, or a new one."""
    for inquiry in state.inquiries:
        if trial in inquiry.cells:
            return inquiry
    inquiry = Inquiry(worker.info.model, worker.info.role, [Cell.of(there, fresh=True)])
    state.inquiries.append(inquiry)
    return inquiry


def explained(state: StateBase, event: DeathExplained) -> list[Decision]:
    """A supervisor tells why a worker has died."""
    for inquiry in [i for i in state.inquiries if i.epoch == event.epoch]:
        if event.cause == "outside":
            inquiry.acquit()
        else:
            return _convict(state, inquiry)
    return []


def _convict(state: StateBase, inquiry: Inquiry) -> list[Decision]:
    alone = inquiry.convict()
    if alone is None:
        return []
    alone.lone_deaths += 1
    if alone.lone_deaths < state.options.max_worker_losses:
        return []
    inquiry.dissolve()
    return [state.fail(alone, errors.quarantined(alone.handle, alone.lone_deaths))]


def proceed(state: StateBase) -> list[Decision]:
    """Time passes: trials end, and the next ones begin."""
    decisions: list[Decision] = []
    for inquiry in list(state.inquiries):
        if inquiry.epoch and state.now >= inquiry.until:
            decisions += _convict(state, inquiry)
        inquiry.narrow()
        _close_trials(state)
        if not inquiry.cells:
            state.inquiries.remove(inquiry)
        elif not inquiry.epoch and not inquiry.cells[0].worker:
            _begin_trial(state, inquiry, inquiry.cells[0])
    return decisions


def _close_trials(state: StateBase) -> None:
    """Open the workers whose suspects are all free."""
    for worker in state.fleet:
        if worker.trial is not None and (not worker.trial.members or worker.draining):
            mine = [s for s in worker.trial.members if s.worker == worker.name]
            state.requeue([worker.withdraw(sequence.slot) for sequence in mine])
            worker.trial.worker = ""
            worker.trial = None


def _begin_trial(state: StateBase, inquiry: Inquiry, cell: Cell) -> None:
    worker = _bench(state, inquiry)
    if worker is None:
        return
    cell.free([sequence for sequence in cell.members if not worker.fits(sequence)])
    state.requeue([worker.withdraw(slot) for slot in worker.batch.occupied()])
    worker.trial, cell.worker, inquiry.bench = cell, worker.name, worker.name


def _bench(state: StateBase, inquiry: Inquiry) -> Worker | None:
    """A worker for a trial: one that is idle; where the last trial was; at last, any."""
    able = [w for w in state.fleet.serving(inquiry.model) if not w.draining and w.trial is None]
    able = [w for w in able if w.info.role == inquiry.role] or able
    if not able:
        return None
    best = min(able, key=lambda w: (bool(len(w.batch)), w.name != inquiry.bench, w.load))
    waits = len(best.batch) and best.name != inquiry.bench and len(able) > 1
    return None if waits and state.now < inquiry.patient_until else best
