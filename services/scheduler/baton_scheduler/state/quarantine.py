"""Quarantine of sequences that may have crashed a worker: they run separately, until they are freed
or refused.

outside: no sequence is suspected
unknown: the suspects wait for the exit status, for a bounded time
inside:  `SuspectSearch.bisect`, then trials; see `baton_scheduler.suspects`
"""

from __future__ import annotations

from baton_scheduler import errors
from baton_scheduler.events import Cause, DeathExplained, Decision
from baton_scheduler.sequence import Cell, Sequence
from baton_scheduler.state.base import StateBase
from baton_scheduler.suspects import SuspectSearch
from baton_scheduler.workers.worker import Worker

EXIT_STATUS_SECONDS = 1.0
"""How long to wait for the exit status from the supervisor."""
_IDLE_SECONDS = 5.0
"""How long to wait for an idle worker before a busy one is used for a trial."""


def suspects(worker: Worker) -> list[Sequence]:
    """The sequences of the steps in flight. Each gets a mark: its log length after all these
    steps."""
    batch, in_flight = worker.batch, list[Sequence]()
    most = 1 + worker.info.num_speculative_tokens
    for slot in batch.occupied():
        lease = int(batch.lease_id[slot])
        if worker.flights.run(slot, lease):
            sampling = sum(slot in f.sampling and f.owners[slot] == lease for f in worker.flights)
            sequence = batch.at(slot)
            sequence.mark = max(sequence.mark, len(sequence.log) + most * max(1, sampling))
            in_flight.append(sequence)
    return in_flight


def worker_died(
    state: StateBase, worker: Worker, in_flight: list[Sequence], cause: Cause
) -> list[Decision]:
    """Suspect the sequences in flight, unless the cause was outside. All are queued again."""
    trial, worker.trial = worker.trial, None
    if trial is not None:
        trial.worker = ""
        in_flight = [sequence for sequence in in_flight if sequence.cell is trial]
    if cause == "outside" or not in_flight:
        return []
    search = _search_of(state, worker, trial, in_flight)
    search.epoch, search.in_flight = worker.epoch, in_flight
    search.patient_until = state.now + _IDLE_SECONDS
    cause_known = cause == "inside" or not worker.info.supervised
    search.until = state.now if cause_known else state.now + EXIT_STATUS_SECONDS
    return _bisect(state, search) if cause_known else []


def _search_of(
    state: StateBase, worker: Worker, trial: Cell | None, in_flight: list[Sequence]
) -> SuspectSearch:
    """The search of the trial, or a new one."""
    for search in state.searches:
        if trial in search.cells:
            return search
    search = SuspectSearch(worker.info.model, worker.info.role, [Cell.of(in_flight, fresh=True)])
    state.searches.append(search)
    return search


def explained(state: StateBase, event: DeathExplained) -> list[Decision]:
    """The supervisor has reported why a worker exited, or its process has joined again."""
    if event.cause == "outside":
        _forgive(state, event.epoch)
    for search in [i for i in state.searches if i.epoch == event.epoch]:
        if event.cause == "outside":
            search.clear()
        else:
            return _bisect(state, search)
    return []


def _forgive(state: StateBase, epoch: int) -> None:
    """A worker without a supervisor was taken for crashed, and lives: no sequence is to blame."""
    for sequence in state.live.values():
        if epoch in sequence.lone_deaths:
            sequence.lone_deaths = tuple(e for e in sequence.lone_deaths if e != epoch)
            if sequence.cell is not None:
                sequence.cell.free([sequence])


def _bisect(state: StateBase, search: SuspectSearch) -> list[Decision]:
    epoch, alone = search.epoch, search.bisect()
    if alone is None:
        return []
    alone.lone_deaths += (epoch,)
    times = len(alone.lone_deaths)
    if times < state.options.max_worker_losses:
        return []
    search.free_all()
    return [state.fail(alone, errors.quarantined(alone.handle, times))]


def proceed(state: StateBase) -> list[Decision]:
    """End and start trials, as of the current time."""
    decisions: list[Decision] = []
    for search in list(state.searches):
        if search.epoch and state.now >= search.until:
            decisions += _bisect(state, search)
        search.narrow()
        _close_trials(state)
        if not search.cells:
            state.searches.remove(search)
        elif not search.epoch and not search.cells[0].worker:
            _begin_trial(state, search, search.cells[0])
    return decisions


def _close_trials(state: StateBase) -> None:
    """Return workers whose suspects are all freed to normal use."""
    for worker in state.fleet:
        if worker.trial is not None and (not worker.trial.members or worker.draining):
            mine = [s for s in worker.trial.members if s.worker == worker.name]
            state.requeue([worker.withdraw(sequence.slot) for sequence in mine])
            worker.trial.worker = ""
            worker.trial = None


def _begin_trial(state: StateBase, search: SuspectSearch, cell: Cell) -> None:
    worker = _trial_worker(state, search)
    if worker is None:
        return
    cell.free([sequence for sequence in cell.members if not worker.fits(sequence)])
    state.requeue([worker.withdraw(slot) for slot in worker.batch.occupied()])
    worker.trial, cell.worker, search.last_worker = cell, worker.name, worker.name


def _trial_worker(state: StateBase, search: SuspectSearch) -> Worker | None:
    """A worker for a trial: an idle one, else that of the last trial, else any after some time."""
    able = [w for w in state.fleet.serving(search.model) if not w.draining and w.trial is None]
    able = [w for w in able if w.info.role == search.role] or able
    if not able:
        return None
    best = min(able, key=lambda w: (bool(len(w.batch)), w.name != search.last_worker, w.load))
    waits = len(best.batch) and best.name != search.last_worker and len(able) > 1
    return None if waits and state.now < search.patient_until else best
