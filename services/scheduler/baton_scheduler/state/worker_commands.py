"""Commands to several workers: sent to each, answered to the operator once all have answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from baton.protocol import Action, AdminCommand, AdminReply, WorkerCommand
from baton_scheduler.events import Decision, Reply, WorkerMessage
from baton_scheduler.state.base import StateBase
from baton_scheduler.state.pending_command import PendingCommand
from baton_scheduler.workers.worker import Worker

NO_WORKER = "No worker of the model is here. Try again later."
ASLEEP = "The model sleeps: wake it up first (/wake_up)."


def begin(
    state: StateBase,
    gateway: str,
    command: AdminCommand,
    workers: Iterable[Worker],
    action: Action | None = None,
) -> list[Decision]:
    """Send a command to workers. `action` is the worker's part, if it differs. Without a gateway it
    is the scheduler's own."""
    action = command.action if action is None else action
    return begin_each(state, gateway, command, [(worker, action) for worker in workers])


def begin_each(
    state: StateBase,
    gateway: str,
    command: AdminCommand,
    actions: Sequence[tuple[Worker, Action]],
) -> list[Decision]:
    """Like `begin`, with one action per worker."""
    state.counters.commands += 1
    number = state.counters.commands
    state.commands[number] = PendingCommand(
        gateway, command, {worker.name for worker, _ in actions}
    )
    return [WorkerMessage(w.name, WorkerCommand(w.epoch, number, action)) for w, action in actions]


def answer(
    gateway: str, command: AdminCommand, status: int = 200, reason: str = "", digest: bytes = b""
) -> list[Decision]:
    """The reply to an operator."""
    return [Reply(gateway, AdminReply(command.id, status, reason, digest))]
