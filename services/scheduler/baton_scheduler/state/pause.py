"""Pause of a model by an operator: its sequences wait and continue from their logs.

pause --keep--> running sequences go back to the queue, and on from their logs after `resume`
      --wait--> they finish first, then the operator gets the answer
      --abort-> running and waiting sequences fail
"""

from __future__ import annotations

from baton.protocol import AdminCommand, AdminReply, Pause
from baton_scheduler import errors
from baton_scheduler.events import Decision, Reply
from baton_scheduler.state.base import StateBase


def pause(state: StateBase, gateway: str, command: AdminCommand, action: Pause) -> list[Decision]:
    """Begin a pause."""
    model, decisions = command.model, list[Decision]()
    state.paused.add(model)
    if action.mode == "keep":
        for worker in state.fleet.serving(model):
            state.requeue([worker.withdraw(slot) for slot in worker.batch.occupied()])
    elif action.mode == "abort":
        live = [s for s in state.sequences() if s.model == model]
        decisions += [state.fail(s, errors.paused(s.handle)) for s in live]
    state.pausing.append((gateway, command))
    return decisions + settle(state)


def resume(state: StateBase, gateway: str, command: AdminCommand) -> list[Decision]:
    """End a pause."""
    state.paused.discard(command.model)
    return [*settle(state), Reply(gateway, AdminReply(command.id))]


def settle(state: StateBase) -> list[Decision]:
    """Answer pause commands of models without running sequences."""
    decisions: list[Decision] = []
    for gateway, command in list(state.pausing):
        workers = list(state.fleet.serving(command.model))
        resumed = command.model not in state.paused
        if not resumed and any(len(worker.batch) for worker in workers):
            continue
        state.pausing.remove((gateway, command))
        if isinstance(command.action, Pause) and command.action.clear_cache and not resumed:
            for worker in workers:
                worker.pool.reset()
        decisions.append(Reply(gateway, AdminReply(command.id)))
    return decisions
