"""Commands of operators to all workers of a model: load and unload adapters, change weights, pause,
sleep.

command --> sent to every worker --> each has answered, or is lost --> reply
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from baton.protocol import (
    KV_BEFORE_WEIGHTS,
    AdapterInfo,
    AdminCommand,
    DropAdapter,
    FinishWeightUpdate,
    InitWeightTransfer,
    LoadAdapter,
    Pause,
    Resume,
    Sleep,
    StartProfile,
    StartWeightUpdate,
    StopProfile,
    UnloadAdapter,
    UpdateWeights,
    WakeUp,
    WorkerCommand,
    WorkerReply,
)
from baton_scheduler.events import AdminRequested, Decision, WorkerMessage, WorkerReplied
from baton_scheduler.state import pause, weight_updates
from baton_scheduler.state.base import StateBase
from baton_scheduler.state.pending_command import PendingCommand
from baton_scheduler.state.worker_commands import ASLEEP, NO_WORKER, answer, begin
from baton_scheduler.workers.worker import Worker


def requested(state: StateBase, event: AdminRequested) -> list[Decision]:
    """Start an operator's command, or refuse it."""
    gateway, command = event.gateway, event.command
    match command.action:
        case LoadAdapter():
            return _load(state, gateway, command, command.action)
        case UnloadAdapter(name):
            if state.adapters.remove(command.model, name) is None:
                return answer(gateway, command, 404, f"There is no adapter '{name}'.")
            return answer(gateway, command)
        case Sleep() | WakeUp():
            return _rest(state, gateway, command, command.action)
        case StartProfile() | StopProfile():
            return _profile(state, gateway, command)
        case Pause():
            return pause.pause(state, gateway, command, command.action)
        case Resume():
            return pause.resume(state, gateway, command)
        case InitWeightTransfer():
            return weight_updates.init(state, gateway, command, command.action)
        case StartWeightUpdate():
            return weight_updates.start(state, gateway, command)
        case UpdateWeights():
            return weight_updates.update(state, gateway, command)
        case FinishWeightUpdate():
            return weight_updates.finish(state, gateway, command, command.action)
        case _:
            return answer(gateway, command, 400, "Only the scheduler asks workers for that.")


def _load(
    state: StateBase, gateway: str, command: AdminCommand, action: LoadAdapter
) -> list[Decision]:
    if not action.replace and state.adapters.get(command.model, action.name) is not None:
        why = f"There is an adapter '{action.name}' already: unload it, or load it in place."
        return answer(gateway, command, 400, why)
    workers = list(state.fleet.serving(command.model))
    if not workers:
        return answer(gateway, command, 503, NO_WORKER)
    if any(worker.info.asleep for worker in workers):
        return answer(gateway, command, 409, ASLEEP)
    return _make_room(state, workers) + begin(state, gateway, command, workers)


def _make_room(state: StateBase, workers: Iterable[Worker]) -> list[Decision]:
    """Have workers whose memory is full drop their least recently used adapter that no sequence
    uses."""
    needed = {live.adapter for live in state.live.values()}
    decisions: list[Decision] = []
    for worker in workers:
        loading = sum(
            worker.name in pending.waiting
            for pending in state.commands.values()
            if isinstance(pending.command.action, LoadAdapter)
        )
        most = worker.info.max_cpu_loras
        if not most or len(worker.adapters) + loading < most:
            continue
        digest = state.adapters.oldest(worker.adapters - needed)
        if digest is not None:
            worker.evicting.add(digest)
            decisions.append(_drop(worker, digest))
    return decisions


def restore(state: StateBase, model: str, digest: bytes) -> list[Decision]:
    """Reload an adapter that was evicted; empty if that is impossible."""
    info = state.adapters.by_digest(model, digest)
    workers = [w for w in state.fleet.serving(model) if not (w.draining or w.info.asleep)]
    if info is None or digest in state.adapters.unreadable or not workers:
        return []
    action = LoadAdapter(info.name, info.path, replace=True)
    return _make_room(state, workers) + begin(state, "", AdminCommand(0, model, action), workers)


def _check_restored(
    state: StateBase, worker: Worker, pending: PendingCommand, reply: WorkerReply
) -> list[Decision]:
    """Process the end of a command of the scheduler's own. An adapter whose content has changed is
    retired."""
    action, model = pending.command.action, pending.command.model
    if pending.gateway or not isinstance(action, LoadAdapter):
        return []
    adapter = state.adapters.get(model, action.name)
    if adapter is None or (not reply.reason and reply.digest == adapter.digest):
        return []
    state.adapters.unreadable.add(adapter.digest)
    strange = not reply.reason and state.adapters.by_digest(model, reply.digest) is None
    return [_drop(worker, reply.digest)] if strange else []


def _rest(
    state: StateBase, gateway: str, command: AdminCommand, action: Sleep | WakeUp
) -> list[Decision]:
    """Put the workers of a model to sleep, or wake them up."""
    workers, sleeps = list(state.fleet.serving(command.model)), isinstance(action, Sleep)
    if not workers:
        return answer(gateway, command, 503, NO_WORKER)
    number = sum(live.model == command.model for live in state.live.values())
    paused = command.model in state.paused and not any(len(worker.batch) for worker in workers)
    if sleeps and number and not paused:
        why = f"{number} requests of the model run or wait: let them end, or pause it first."
        return answer(gateway, command, 409, why)
    able = [worker for worker in workers if bool(worker.info.asleep) != sleeps]
    tags = () if isinstance(action, Sleep) else action.tags
    if tags == ("kv_cache",) and any(worker.info.asleep > 1 for worker in able):
        return answer(gateway, command, 409, KV_BEFORE_WEIGHTS)
    if tags == ("weights",):
        able = [worker for worker in able if worker.info.asleep > 1]
    if not able:
        return answer(gateway, command)
    return begin(state, gateway, command, able)


def _profile(state: StateBase, gateway: str, command: AdminCommand) -> list[Decision]:
    workers = list(state.fleet.serving(command.model))
    return (
        begin(state, gateway, command, workers)
        if workers
        else answer(gateway, command, 503, NO_WORKER)
    )


def wake(state: StateBase, model: str) -> list[Decision]:
    """Wake the workers of a model with waiting sequences if all of them sleep."""
    fleet = state.fleet.serving(model)
    if any(not (worker.info.asleep or worker.draining) for worker in fleet):
        return []
    asleep = [worker for worker in fleet if worker.info.asleep and not worker.waking]
    for worker in asleep:
        worker.waking = True
    command = AdminCommand(0, model, WakeUp())
    return begin(state, "", command, asleep) if asleep else []


def replied(state: StateBase, event: WorkerReplied) -> list[Decision]:
    """Record a worker's answer to a command."""
    reply, worker = event.reply, state.fleet.get(event.worker)
    if worker is None or worker.epoch != reply.epoch:
        return []
    worker.info = msgspec.structs.replace(worker.info, adapters=reply.adapters)
    worker.evicting &= {info.digest for info in reply.adapters}
    pending = state.commands.get(reply.id)
    if pending is None or worker.name not in pending.waiting:
        return []
    if reply.reason:
        pending.failed[worker.name] = reply.reason
    else:
        pending.loaded[worker.name] = reply.digest
        if reply.source is not None:
            pending.sources[worker.name] = reply.source
        if pending.command.action == WakeUp(("weights",)):
            worker.info = msgspec.structs.replace(worker.info, asleep=1)
    weight_updates.replied(worker, pending, reply)
    pending.waiting.discard(worker.name)
    return _check_restored(state, worker, pending, reply) + _settle(state, reply.id, pending)


def worker_left(state: StateBase, name: str) -> list[Decision]:
    """Stop waiting for the answers of a lost worker."""
    decisions: list[Decision] = []
    for number, pending in list(state.commands.items()):
        if name in pending.waiting:
            pending.waiting.discard(name)
            decisions += _settle(state, number, pending)
    return decisions


def joined(state: StateBase, worker: Worker) -> list[Decision]:
    """Have a joining worker load the adapters that it lacks."""
    model = worker.info.model
    decisions: list[Decision] = []
    lacking = state.adapters.joined(model, worker.info.adapters)
    if most := worker.info.max_cpu_loras:
        lacking = lacking[: max(0, most - len(worker.adapters))]
    for info in lacking:
        action = LoadAdapter(info.name, info.path, replace=True)
        decisions += begin(state, "", AdminCommand(0, model, action), [worker])
    return decisions + weight_updates.joined(state, worker)


def coming(state: StateBase, model: str) -> bool:
    """True if a worker of the model is still loading adapters."""
    own = (
        pending.command.model
        for pending in state.commands.values()
        if not pending.gateway and isinstance(pending.command.action, LoadAdapter)
    )
    return any(model in ("", other) for other in own)


def drop_unused(state: StateBase) -> list[Decision]:
    """Free retired adapters that no sequence uses."""
    decisions: list[Decision] = []
    for model in state.adapters.waiting:
        used = {live.adapter for live in state.live.values()}
        for digest in state.adapters.unused(model, used):
            for worker in state.fleet.serving(model):
                decisions.append(_drop(worker, digest))
    return decisions


def _drop(worker: Worker, digest: bytes) -> Decision:
    return WorkerMessage(worker.name, WorkerCommand(worker.epoch, 0, DropAdapter(digest)))


def _settle(state: StateBase, number: int, pending: PendingCommand) -> list[Decision]:
    """Reply once every worker has answered."""
    if pending.waiting:
        return []
    del state.commands[number]
    action, command = pending.command.action, pending.command
    if not pending.gateway:
        return []
    if isinstance(action, StartWeightUpdate | UpdateWeights | FinishWeightUpdate):
        return weight_updates.settled(state, pending)
    if not isinstance(action, LoadAdapter):
        why = next(iter(pending.failed.values()), "")
        return answer(pending.gateway, command, 400 if why else 200, why)
    return _settle_load(state, pending, action)


def _settle_load(state: StateBase, pending: PendingCommand, action: LoadAdapter) -> list[Decision]:
    """List the adapter if all workers have loaded the same weights; else unload it again."""
    command, digests = pending.command, set(pending.loaded.values())
    if not pending.failed and len(digests) == 1:
        digest = digests.pop()
        state.adapters.add(command.model, AdapterInfo(action.name, digest, action.path))
        return answer(pending.gateway, command, digest=digest)
    undo = [_undo(state, command.model, name, d) for name, d in pending.loaded.items()]
    why = next(iter(pending.failed.values()), "")
    if not why and digests:
        why = "The workers have read different weights from that path."
    status = 400 if why else 503
    why = why or "The workers were lost. Try again later."
    return [
        *(u for u in undo if u is not None),
        *answer(pending.gateway, command, status, why),
    ]


def _undo(state: StateBase, model: str, name: str, digest: bytes) -> Decision | None:
    """Unload an adapter that some workers could not load from the others."""
    worker = state.fleet.get(name)
    is_listed = any(info.digest == digest for info in state.adapters.listed(model))
    return None if worker is None or is_listed else _drop(worker, digest)
