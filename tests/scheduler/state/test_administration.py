"""Adapters that are loaded on all workers, or on none."""

from __future__ import annotations

import pytest
from msgspec import structs

from baton.protocol import (
    Action,
    AdapterInfo,
    AdminCommand,
    AdminReply,
    DropAdapter,
    LoadAdapter,
    Pause,
    Resume,
    Sampling,
    Sleep,
    StartProfile,
    StopProfile,
    UnloadAdapter,
    WakeUp,
    WorkerReply,
)
from baton_scheduler.events import AdminRequested, WorkerReplied
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World

pytestmark = pytest.mark.row("F11.04", "F19.09")
INFO = structs.replace(worker_info(), max_loras=4)
A = AdapterInfo("a", b"1", "/a")


class Fleet(World):
    """Workers whose commands are answered by hand."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.join(name, INFO)

    def ask(self, action: Action, number: int = 1) -> AdminReply | None:
        """An operator asks; returns what is said at once."""
        before = len(self.admin)
        self.apply(AdminRequested("g", AdminCommand(number, "fake", action)))
        return self.admin[-1] if len(self.admin) > before else None

    def answer(
        self, name: str, reason: str = "", adapters: tuple[AdapterInfo, ...] = (A,)
    ) -> AdminReply | None:
        """A worker answers its first command; returns what the operator is then told."""
        peer, before = self.peers[name], len(self.admin)
        number, digest = peer.commands.popleft().id, b"" if reason else adapters[-1].digest
        reply = WorkerReply(peer.epoch, number, reason, digest, adapters)
        self.apply(WorkerReplied(name, reply))
        return self.admin[-1] if len(self.admin) > before else None

    def actions(self, name: str) -> list[object]:
        return [command.action for command in self.peers[name].commands]


def test_a_name_is_served_once_every_worker_has_loaded_it() -> None:
    here = Fleet("one", "two")
    assert here.ask(LoadAdapter("a", "/a")) is None and not here.state.adapters.listed("fake")
    assert here.actions("one") == here.actions("two") == [LoadAdapter("a", "/a")]
    assert here.answer("one") is None
    assert here.answer("two") == AdminReply(1, digest=b"1")
    assert here.state.adapters.listed("fake") == (A,)
    again = here.ask(LoadAdapter("a", "/b"))
    assert again is not None and again.status == 400 and "already" in again.reason
    missing = here.ask(UnloadAdapter("b"))
    assert missing is not None and missing.status == 404


def test_what_one_worker_cannot_load_no_worker_keeps() -> None:
    here = Fleet("one", "two")
    here.ask(LoadAdapter("a", "/a"))
    here.answer("one")
    failed = here.answer("two", "it is of another model", ())
    assert failed == AdminReply(1, 400, "it is of another model")
    assert here.actions("one") == [DropAdapter(b"1")] and not here.state.adapters.listed("fake")
    here.peers["one"].commands.clear()
    here.ask(LoadAdapter("a", "/a"), 2)
    here.answer("one")
    other = here.answer("two", adapters=(structs.replace(A, digest=b"2"),))
    assert other is not None and other.status == 400 and "different weights" in other.reason


def test_nobody_waits_for_a_worker_that_is_lost() -> None:
    here = Fleet("one", "two")
    here.ask(LoadAdapter("a", "/a"))
    here.answer("one")
    here.lose_worker("two")
    assert here.admin == [AdminReply(1, digest=b"1")]
    here.ask(LoadAdapter("b", "/b"), 2)
    here.lose_worker("one")
    assert here.admin[-1].status == 503
    nobody = here.ask(LoadAdapter("c", "/c"), 3)
    assert nobody is not None and nobody.status == 503


def test_a_sequence_waits_for_the_worker_that_has_joined_and_loads() -> None:
    here = Fleet("one")
    here.ask(LoadAdapter("a", "/a"))
    here.answer("one")
    request = here.submit([1] * 20, Sampling(4), adapter=b"1")
    here.lose_worker("one")
    here.join("new", INFO)
    assert here.actions("new") == [LoadAdapter("a", "/a", replace=True)]
    here.tick()
    assert request.end is None and not here.state.num_running, "it would fail if nothing came"
    here.answer("new")
    here.finish()
    assert request.end == "length"


def test_what_is_unloaded_is_dropped_after_its_last_sequence() -> None:
    here = Fleet("one")
    here.ask(LoadAdapter("a", "/a"))
    here.answer("one")
    request = here.submit([1] * 20, Sampling(4), adapter=b"1")
    here.tick()
    assert here.ask(UnloadAdapter("a")) == AdminReply(1) and not here.state.adapters.listed("fake")
    here.tick()
    assert here.actions("one") == []
    here.finish()
    here.tick()
    assert request.end == "length" and here.actions("one") == [DropAdapter(b"1")]


@pytest.mark.row("F19.06")
def test_weights_wake_before_keys_and_values() -> None:
    here = Fleet("one")
    here.ask(Sleep(2))
    assert here.actions("one") == [Sleep(2)]
    here.answer("one")
    here.join("one", structs.replace(INFO, asleep=2))
    refused = here.ask(WakeUp(("kv_cache",)), 2)
    assert refused is not None and refused.status == 409 and "weights" in refused.reason
    assert here.ask(WakeUp(("weights",)), 3) is None
    assert here.actions("one") == [WakeUp(("weights",))]
    here.answer("one")
    assert here.admin[-1] == AdminReply(3)
    assert here.ask(WakeUp(("weights",)), 4) == AdminReply(4), "they are there already"
    assert here.ask(WakeUp(("kv_cache",)), 5) is None
    assert here.actions("one") == [WakeUp(("kv_cache",))]


@pytest.mark.row("F19.05", "F19.06")
def test_the_next_sequence_wakes_a_model_that_sleeps() -> None:
    here = Fleet("one", "two")
    request = here.submit([1] * 20, Sampling(4), model="fake")
    busy = here.ask(Sleep(2))
    assert busy is not None and busy.status == 409 and "1 requests" in busy.reason
    here.finish()
    assert request.end == "length" and here.ask(Sleep(2), 2) is None
    for name in ("one", "two"):
        assert here.actions(name) == [Sleep(2)]
        here.answer(name)
        here.join(name, structs.replace(INFO, asleep=2))
    assert here.admin[-1] == AdminReply(2) and here.ask(Sleep(1), 3) == AdminReply(3)
    refused = here.ask(LoadAdapter("b", "/b"), 4)
    assert refused is not None and refused.status == 409
    here.tick()
    assert here.actions("one") == here.actions("two") == []
    request = here.submit([2] * 20, Sampling(4), model="fake")
    for _ in range(3):
        here.tick()
    assert here.actions("one") == here.actions("two") == [WakeUp()], "once, and not every tick"
    assert request.end is None and not here.state.num_running
    here.answer("two")
    here.join("two", INFO)
    here.finish()
    assert request.end == "length" and here.admin[-1].id == 4


@pytest.mark.row("F19.05", "F19.06")
def test_a_paused_model_sleeps_and_its_sequences_go_on_after_it() -> None:
    here = Fleet("one")
    request = here.submit([1] * 20, Sampling(30), model="fake")
    for _ in range(3):
        here.round()
    started = len(request.tokens)
    assert started and here.ask(Pause("keep")) == AdminReply(1) and here.ask(Sleep(1), 2) is None
    here.answer("one")
    here.join("one", structs.replace(INFO, asleep=1))
    here.round()
    assert here.actions("one") == [], "a paused model is not woken"
    here.ask(Resume(), 3)
    here.tick()
    assert here.actions("one") == [WakeUp()]
    here.answer("one")
    here.join("one", INFO)
    here.finish()
    assert request.end == "length" and len(request.tokens) == 30 > started


def test_more_adapters_than_memory_holds_come_and_go_by_use() -> None:
    here = Fleet()
    here.join("one", structs.replace(INFO, max_cpu_loras=2))
    infos = [AdapterInfo(name, name.encode(), f"/{name}") for name in "abc"]
    a, b, c = infos

    def load(info: AdapterInfo, *held: AdapterInfo) -> None:
        here.ask(LoadAdapter(info.name, info.path))
        while here.actions("one"):
            here.answer("one", adapters=(*held, info))
        assert here.admin[-1].status == 200

    load(a)
    load(b, a)
    old = here.submit([1] * 20, Sampling(4), adapter=b"a", model="fake")
    here.finish()
    assert old.end == "length"
    here.ask(LoadAdapter("c", "/c"))
    assert here.actions("one") == [DropAdapter(b"b"), LoadAdapter("c", "/c")], "b was used least"
    here.answer("one", adapters=(a,))
    here.answer("one", adapters=(a, c))
    assert here.state.adapters.listed("fake") == (a, b, c), "its name is still served"
    running = here.submit([1] * 20, Sampling(40), adapter=b"c", model="fake")
    here.tick()
    again = here.submit([2] * 20, Sampling(4), adapter=b"b", model="fake")
    here.tick()
    assert here.actions("one") == [DropAdapter(b"a"), LoadAdapter("b", "/b", replace=True)]
    here.tick()
    assert again.end is None and len(here.actions("one")) == 2, "it is asked for once"
    here.answer("one", adapters=(c,))
    here.answer("one", adapters=(c, b))
    here.finish()
    assert again.end == running.end == "length"
    # Files with other contents are another adapter.
    lost = here.submit([3] * 20, Sampling(4), adapter=b"a", model="fake")
    here.tick()
    assert here.actions("one")[-1] == LoadAdapter("a", "/a", replace=True)
    here.answer("one", adapters=(b,))
    other = structs.replace(a, digest=b"x")
    here.answer("one", adapters=(b, other))
    assert here.actions("one") == [DropAdapter(b"x")]
    here.finish()
    assert lost.failed is not None and lost.failed.code == "model_not_found"


def test_a_worker_that_joins_loads_what_was_used_last() -> None:
    here = Fleet("one")
    for name in "ab":
        here.ask(LoadAdapter(name, f"/{name}"))
        here.answer("one", adapters=(AdapterInfo(name, name.encode(), f"/{name}"),))
    here.submit([1] * 20, Sampling(4), adapter=b"b", model="fake")
    here.join("two", structs.replace(INFO, max_cpu_loras=1))
    assert here.actions("two") == [LoadAdapter("b", "/b", replace=True)]


@pytest.mark.row("F19.04")
def test_every_worker_records_its_steps() -> None:
    here = Fleet("one", "two")
    assert here.ask(StartProfile()) is None
    assert here.actions("one") == here.actions("two") == [StartProfile()]
    here.answer("one")
    here.answer("two", reason="it cannot")
    assert here.admin[-1] == AdminReply(1, 400, "it cannot")
    nobody = Fleet().ask(StopProfile())
    assert nobody is not None and nobody.status == 503
