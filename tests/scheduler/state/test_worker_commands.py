"""A command for several workers."""

from __future__ import annotations

from baton.protocol import AdminCommand, AdminReply, DropWeights, Resume, WorkerCommand
from baton_scheduler.events import Reply, WorkerMessage
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state import State
from baton_scheduler.state.worker_commands import answer, begin
from tests.fakes.hash_worker import worker_info


def test_each_worker_is_told_under_its_epoch_and_all_are_awaited() -> None:
    state, command = State(SchedulerOptions()), AdminCommand(7, "fake", Resume())
    for epoch, name in enumerate(("one", "two")):
        state.fleet.join(name, epoch, worker_info(), 512)
    workers = list(state.fleet)
    assert begin(state, "g", command, workers) == [
        WorkerMessage("one", WorkerCommand(0, 1, Resume())),
        WorkerMessage("two", WorkerCommand(1, 1, Resume())),
    ]
    assert begin(state, "", command, workers[:1], DropWeights()) == [
        WorkerMessage("one", WorkerCommand(0, 2, DropWeights()))
    ]
    assert state.commands[1].waiting == {"one", "two"} and state.commands[2].gateway == ""
    assert answer("g", command, 409, "no", b"d") == [Reply("g", AdminReply(7, 409, "no", b"d"))]
