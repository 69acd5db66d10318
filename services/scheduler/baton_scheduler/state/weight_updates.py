"""Online weight updates of a model.

init (if workers and a trainer form a group)
start --> update, as often as needed --> finish: every worker loads them beside its own
                                            | one cannot        | all can
                                            v                   v
                              all discard them, none      the version is agreed: each worker
                              has changed                switches between two steps

Once a version is agreed, no sequence starts on other weights. Running sequences continue on the new
ones from their logs (keep), finish first (wait) or fail (abort). A worker that joins with other
weights loads the agreed ones before it gets a sequence.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import structs

from baton.protocol import (
    AdminCommand,
    DropWeights,
    FinishWeightUpdate,
    InitWeightTransfer,
    LoadWeights,
    StartWeightUpdate,
    SwitchWeights,
    UpdateMode,
    UpdateWeights,
    WeightVersion,
    WorkerCommand,
    WorkerReply,
)
from baton_scheduler import errors
from baton_scheduler.events import Decision, WorkerMessage
from baton_scheduler.state.base import StateBase
from baton_scheduler.state.pending_command import PendingCommand
from baton_scheduler.state.weight_update import WeightUpdate
from baton_scheduler.state.worker_commands import ASLEEP, NO_WORKER, answer, begin, begin_each
from baton_scheduler.workers.worker import Worker

_BYTES = 16
"""Length of a version's digest."""
_NOT_STARTED = "No weight update of this model was started: POST /start_weight_update first."
_BUSY = "A weight update of this model is being finished: wait for its answer."


def init(
    state: StateBase, gateway: str, command: AdminCommand, action: InitWeightTransfer
) -> list[Decision]:
    """Have every worker join a group with a trainer, one rank after the other."""
    workers = sorted(state.fleet.serving(command.model), key=lambda worker: worker.name)
    if not workers:
        return answer(gateway, command, 503, NO_WORKER)
    if any(worker.info.asleep for worker in workers):
        return answer(gateway, command, 409, ASLEEP)
    if action.world_size != action.rank + len(workers):
        why = f"The model has {len(workers)} workers: world_size is that many above rank_offset."
        return answer(gateway, command, 400, why)
    actions = [
        (worker, structs.replace(action, rank=action.rank + place))
        for place, worker in enumerate(workers)
    ]
    return begin_each(state, gateway, command, actions)


def start(state: StateBase, gateway: str, command: AdminCommand) -> list[Decision]:
    """Begin an update; sources of an unfinished one are discarded."""
    model, workers = command.model, list(state.fleet.serving(command.model))
    if not workers:
        return answer(gateway, command, 503, NO_WORKER)
    if any(worker.info.asleep for worker in workers):
        return answer(gateway, command, 409, ASLEEP)
    if _finishing(state, model):
        return answer(gateway, command, 409, _BUSY)
    state.updates[model] = WeightUpdate()
    return begin(state, gateway, command, workers, DropWeights())


def update(state: StateBase, gateway: str, command: AdminCommand) -> list[Decision]:
    """Have every worker receive weights."""
    workers = list(state.fleet.serving(command.model))
    if command.model not in state.updates:
        return answer(gateway, command, 409, _NOT_STARTED)
    if _finishing(state, command.model):
        return answer(gateway, command, 409, _BUSY)
    if not workers:
        return answer(gateway, command, 503, NO_WORKER)
    return begin(state, gateway, command, workers)


def finish(
    state: StateBase, gateway: str, command: AdminCommand, action: FinishWeightUpdate
) -> list[Decision]:
    """Have every worker load the received weights."""
    model = command.model
    update, workers = state.updates.get(model), list(state.fleet.serving(model))
    if update is None:
        return answer(gateway, command, 409, _NOT_STARTED)
    if _finishing(state, model):
        return answer(gateway, command, 409, _BUSY)
    if not update.sources:
        return answer(gateway, command, 409, "No weights were received: POST /update_weights.")
    if not workers:
        return answer(gateway, command, 503, NO_WORKER)
    update.version = _version(state, model, update, action.label)
    return begin(state, gateway, command, workers, LoadWeights(update.version))


def _finishing(state: StateBase, model: str) -> bool:
    update = state.updates.get(model)
    return update is not None and update.version is not None


def _version(state: StateBase, model: str, update: WeightUpdate, label: str) -> WeightVersion:
    """Version that results from the current weights and the received sources."""
    current = state.weights.get(model, WeightVersion())
    base = () if update.sources[0].whole else current.sources
    sources, total = (*base, *update.sources), sha256()
    for source in sources:
        total.update(source.digest)
    number = current.number + 1
    return WeightVersion(number, label or str(number), total.digest()[:_BYTES], sources)


def replied(worker: Worker, pending: PendingCommand, reply: WorkerReply) -> None:
    """Record a worker's reply about weights."""
    if isinstance(pending.command.action, FinishWeightUpdate | LoadWeights | SwitchWeights):
        worker.loaded = b"" if reply.reason else reply.digest
    failed = not pending.gateway and reply.reason
    if failed and isinstance(pending.command.action, LoadWeights | SwitchWeights):
        # The reason is in its log. After a restart it gets the command again.
        worker.draining = True


def settled(state: StateBase, pending: PendingCommand) -> list[Decision]:
    """Every worker has answered, or is lost."""
    gateway, command = pending.gateway, pending.command
    update = state.updates.get(command.model)
    why = next(iter(pending.failed.values()), "")
    if update is None:  # Another update was started meanwhile, so this one has failed.
        return answer(gateway, command, 409, _NOT_STARTED)
    if isinstance(command.action, StartWeightUpdate):
        return answer(gateway, command, 400 if why else 200, why)
    if isinstance(command.action, UpdateWeights):
        return _received(update, pending, why)
    if why or not pending.loaded:
        return _given_up(state, pending, why or "The workers were lost. Start again later.")
    assert isinstance(command.action, FinishWeightUpdate) and update.version is not None
    update.finishing = gateway, command
    return agree(state, command.model, update.version, command.action.mode)


def _received(update: WeightUpdate, pending: PendingCommand, why: str) -> list[Decision]:
    """Record a source that all workers have received, or answer why one has not."""
    gateway, command = pending.gateway, pending.command
    sources = set(pending.sources.values())
    if not why and len(sources) > 1:
        why = "The workers have received different weights from there."
    if why or not sources:
        why = why or "The workers were lost. Try again later."
        return answer(gateway, command, 400 if sources or pending.failed else 503, why)
    source = sources.pop()
    update.add(source)
    return answer(gateway, command, digest=source.digest)


def _given_up(state: StateBase, pending: PendingCommand, why: str) -> list[Decision]:
    """Cancel the update: workers that have loaded the new weights discard them."""
    model = pending.command.model
    del state.updates[model]
    drops = [
        WorkerMessage(worker.name, WorkerCommand(worker.epoch, 0, DropWeights()))
        for worker in state.fleet.serving(model)
        if not worker.outdated
    ]
    status = 400 if pending.failed else 503
    return [*drops, *answer(pending.gateway, pending.command, status, why)]


def agree(
    state: StateBase, model: str, version: WeightVersion, mode: UpdateMode = "keep"
) -> list[Decision]:
    """Set the weights of a model."""
    state.weights[model] = version
    decisions: list[Decision] = []
    for worker in state.fleet.serving(model):
        worker.target = version
        if mode == "keep" and worker.outdated:
            state.requeue([worker.withdraw(slot) for slot in worker.batch.occupied()])
    for live in [s for s in state.sequences() if s.model == model]:
        if mode == "abort":
            decisions.append(state.fail(live, errors.weights_changed(live.handle)))
        elif live.worker is None:
            state.encodings.release(live)
            live.use_weights(version.digest)
            state.request_encodings(live)
    return decisions


def joined(state: StateBase, worker: Worker) -> list[Decision]:
    """A worker has joined: it loads the agreed weights if it has others. If its own are newer, they
    become the agreed ones, which is how a restarted scheduler recovers them."""
    model, has = worker.info.model, worker.info.weights
    agreed = state.weights.setdefault(model, has)
    if worker.info.asleep:
        return []
    if has.number > agreed.number:
        decisions = agree(state, model, has)
        others = [w for w in state.fleet.serving(model) if w.outdated and w is not worker]
        return decisions + [decision for other in others for decision in _bring(state, other)]
    worker.target = agreed
    return _bring(state, worker) if worker.outdated else []


def _bring(state: StateBase, worker: Worker) -> list[Decision]:
    """Have an outdated worker load the agreed weights."""
    command = AdminCommand(0, worker.info.model, LoadWeights(worker.target))
    return begin(state, "", command, [worker])


def proceed(state: StateBase) -> list[Decision]:
    """Switch workers that run nothing any more; an update ends when all have switched."""
    decisions: list[Decision] = []
    for worker in state.fleet:
        ready = worker.outdated and worker.loaded == worker.target.digest
        if ready and not worker.switching and not len(worker.batch):
            worker.switching = True
            action = SwitchWeights(worker.target.digest)
            decisions += begin(state, "", AdminCommand(0, worker.info.model, action), [worker])
    for model, update in list(state.updates.items()):
        if update.finishing is not None and _switched(state, model):
            decisions += answer(*update.finishing)
            del state.updates[model]
    return decisions


def _switched(state: StateBase, model: str) -> bool:
    """True if all workers of a model have the agreed weights."""
    workers = [worker for worker in state.fleet.serving(model) if not worker.draining]
    return bool(workers) and not any(worker.outdated for worker in workers)
