"""Weights that change: agreed by all workers or by none, and nothing runs on a mixture."""

from __future__ import annotations

import pytest
from msgspec import structs

from baton.protocol import (
    Action,
    AdminCommand,
    AdminReply,
    DropWeights,
    FileTransfer,
    FinishWeightUpdate,
    InitWeightTransfer,
    LoadWeights,
    Sampling,
    StartWeightUpdate,
    SwitchWeights,
    UpdateMode,
    UpdateWeights,
    WeightSource,
    WeightVersion,
    WorkerReply,
)
from baton_scheduler.events import AdminRequested, WorkerReplied
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World

pytestmark = pytest.mark.row("F14.14", "F19.09")
INFO = worker_info()
SOURCE = WeightSource("/new", b"n" * 32)
PATCH = WeightSource("/patch", b"p" * 32, whole=False)
UPDATE = UpdateWeights(FileTransfer("/new"))


class Fleet(World):
    """Workers whose commands are answered by hand."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.asked = 0
        for name in names:
            self.join(name, INFO)

    def ask(self, action: Action) -> AdminReply | None:
        """An operator asks; returns what is said at once."""
        before, self.asked = len(self.admin), self.asked + 1
        self.apply(AdminRequested("g", AdminCommand(self.asked, "fake", action)))
        return self.admin[-1] if len(self.admin) > before else None

    def answer(
        self, name: str, reason: str = "", source: WeightSource | None = None
    ) -> AdminReply | None:
        """A worker carries out its first command; returns what the operator is then told."""
        peer, before = self.peers[name], len(self.admin)
        command = peer.commands.popleft()
        digest = b""
        if isinstance(command.action, LoadWeights):
            digest = command.action.version.digest
        reply = WorkerReply(peer.epoch, command.id, reason, digest, source=source)
        self.apply(WorkerReplied(name, reply))
        return self.admin[-1] if len(self.admin) > before else None

    def actions(self, name: str) -> list[object]:
        return [command.action for command in self.peers[name].commands]

    def receive(self, *names: str, source: WeightSource = SOURCE) -> None:
        """An update begins, and all workers receive weights."""
        self.ask(StartWeightUpdate())
        for name in names:
            self.answer(name)
        self.ask(UPDATE)
        for name in names:
            self.answer(name, source=source)
        assert self.admin[-1].status == 200

    def load(self, *names: str, mode: UpdateMode = "keep", label: str = "v1") -> WeightVersion:
        """All workers load what they have received; returns the version."""
        assert self.ask(FinishWeightUpdate(label, mode)) is None
        action = self.actions(names[0])[-1]
        assert isinstance(action, LoadWeights)
        for name in names:
            self.answer(name)
        return action.version

    def switch(self, name: str, version: WeightVersion) -> None:
        """A worker uses the new weights, and joins again."""
        assert self.actions(name) == [SwitchWeights(version.digest)]
        self.answer(name)
        self.join(name, structs.replace(INFO, weights=version))

    @property
    def label(self) -> str:
        return self.state.weights["fake"].label


def test_each_step_needs_the_one_before() -> None:
    here = Fleet()
    for action in (StartWeightUpdate(), UPDATE, FinishWeightUpdate()):
        refused = here.ask(action)
        assert refused is not None and refused.status == (503 if action != UPDATE else 409) - (
            94 if isinstance(action, FinishWeightUpdate) else 0
        )
    here.join("one", INFO)
    here.ask(StartWeightUpdate())
    assert here.actions("one") == [DropWeights()] and here.answer("one") == AdminReply(4)
    empty = here.ask(FinishWeightUpdate())
    assert empty is not None and empty.status == 409 and "/update_weights" in empty.reason


def test_workers_join_a_group_with_a_trainer_in_the_order_of_their_names() -> None:
    here = Fleet()
    init = InitWeightTransfer("trainer", 29500, 2, 4)
    nobody = here.ask(init)
    assert nobody is not None and nobody.status == 503
    here.join("two", INFO)
    here.join("one", INFO)
    few = here.ask(structs.replace(init, world_size=3))
    assert few is not None and few.status == 400 and "has 2 workers" in few.reason
    assert here.ask(init) is None
    assert [here.actions(name) for name in ("one", "two")] == [
        [structs.replace(init, rank=2)],
        [structs.replace(init, rank=3)],
    ]
    here.answer("one")
    told = here.answer("two", "The group with the trainer has failed: it timed out")
    assert told is not None and told.status == 400 and "timed out" in told.reason


def test_running_sequences_continue_on_the_new_weights() -> None:
    here = Fleet("one", "two")
    request = here.submit([1] * 40, Sampling(30), model="fake")
    for _ in range(3):
        here.tick()
        here.run("one")
        here.deliver("one")
    (live,) = here.state.sequences()
    old = live.chain(INFO.page_size).at(0)
    here.receive("one", "two")
    version = here.load("one", "two")
    assert here.label == "v1" and version.number == 1 and version.sources == (SOURCE,)
    assert live.worker is None and live.weights == version.digest
    assert live.chain(INFO.page_size).at(0) != old, "no page of the old weights is one of the new"
    here.tick()
    assert not here.state.num_running, "no worker has the new weights yet"
    here.switch("one", version)
    here.tick()
    assert live.worker == "one"
    assert len(here.admin) == 2, "one worker is still to switch"
    here.switch("two", version)
    here.tick()
    assert here.admin[-1] == AdminReply(3) and not here.state.updates
    here.finish()
    assert request.end == "length" and request.times is not None
    assert [label for _, label in request.times.weights] == ["default", "v1"]
    assert request.times.weights[1][0] > 0
    assert here.state.counters.lost_workers == 0


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_running_sequences_finish_first_or_fail(mode: UpdateMode) -> None:
    here = Fleet("one")
    running = here.submit([1] * 20, Sampling(5), model="fake")
    here.tick()
    here.receive("one")
    version = here.load("one", mode=mode)
    waiting = here.submit([2] * 20, Sampling(5), model="fake")
    here.tick()
    if mode == "abort":
        assert running.failed is not None and running.failed.code == "weights_changed"
    else:
        assert not here.actions("one"), "it switches once nothing runs"
        while running.end is None:
            here.tick()
            here.run("one")
            here.deliver("one")
        assert running.times is not None and running.times.weights == ((0, "default"),)
        here.tick()
    assert waiting.end is None
    here.switch("one", version)
    here.finish()
    assert waiting.times is not None and waiting.times.weights == ((0, "v1"),)
    assert here.admin[-1].status == 200


def test_what_one_worker_cannot_load_no_worker_uses() -> None:
    here = Fleet("one", "two")
    here.receive("one", "two")
    here.ask(FinishWeightUpdate("v1"))
    here.answer("one")
    failed = here.answer("two", "its logits are not finite")
    assert failed == AdminReply(3, 400, "its logits are not finite")
    assert here.actions("one") == here.actions("two") == [DropWeights()]
    assert here.label == "default" and not here.state.updates
    request = here.submit([1] * 20, Sampling(5), model="fake")
    here.finish()
    assert request.end == "length"


def test_workers_that_receive_different_weights_agree_on_nothing() -> None:
    here = Fleet("one", "two")
    here.ask(StartWeightUpdate())
    here.answer("one")
    here.answer("two")
    here.ask(UPDATE)
    here.answer("one", source=SOURCE)
    told = here.answer("two", source=structs.replace(SOURCE, digest=b"x"))
    assert told is not None and told.status == 400 and "different weights" in told.reason
    here.ask(UPDATE)
    here.answer("one", source=SOURCE)
    told = here.answer("two", "it is not there")
    assert told is not None and told.reason == "it is not there"


def test_a_worker_that_comes_back_gets_what_was_agreed() -> None:
    here = Fleet("one", "two")
    here.receive("one", "two")
    here.ask(FinishWeightUpdate("v1"))
    here.answer("one")
    here.lose_worker("two")
    version = here.state.weights["fake"]
    assert version.label == "v1", "nobody waits for the lost one"
    here.join("two", INFO)
    here.tick()
    assert here.actions("two") == [LoadWeights(version)]
    here.answer("two")
    here.tick()
    here.switch("two", version)
    assert here.admin[-1].status == 200 and len(here.admin) == 2
    here.switch("one", version)
    here.tick()
    assert len(here.admin) == 3
    here.join("three", INFO)
    here.answer("three", "the files are gone")
    worker = here.state.fleet.get("three")
    assert worker is not None and worker.draining, "nothing ever runs on it"


def test_tensors_are_put_upon_what_is_there_and_a_checkpoint_replaces_all() -> None:
    here = Fleet("one")
    before = None
    for number, (source, sources) in enumerate(
        [(PATCH, (PATCH,)), (PATCH, (PATCH, PATCH)), (SOURCE, (SOURCE,)), (PATCH, (SOURCE, PATCH))],
        start=1,
    ):
        here.receive("one", source=source)
        version = here.load("one", label="")
        assert version.sources == sources and version.label == str(number)
        assert version.digest != before
        here.tick()
        here.switch("one", version)
        here.tick()
        before = version.digest
        assert not here.state.updates


def test_the_next_scheduler_learns_the_version_from_the_newest_worker() -> None:
    here, version = Fleet("one"), WeightVersion(3, "v3", b"3", (SOURCE,))
    request = here.submit([1] * 20, Sampling(5), model="fake")
    here.tick()
    here.join("two", structs.replace(INFO, weights=version))
    assert here.label == "v3" and here.actions("one") == [LoadWeights(version)]
    here.tick()
    (live,) = here.state.sequences()
    assert live.worker == "two"
    here.answer("one")
    here.tick()
    here.switch("one", version)
    here.finish()
    assert request.end == "length"
    here.join("late", structs.replace(INFO, weights=WeightVersion(2, "v2", b"2", (PATCH,))))
    assert here.actions("late") == [LoadWeights(version)] and here.label == "v3"
