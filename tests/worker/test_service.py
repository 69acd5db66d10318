"""The worker over real sockets, with a scheduler that follows a script."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from baton.kv.page_hashes import split_hashes
from baton.net.discovery import StaticDirectory, socket_path
from baton.net.handshake import PeerTable
from baton.net.sockets import Server, wait
from baton.net.topology import FLEET
from baton.process import standby
from baton.process.lifecycle import Lifecycle
from baton.process.segments import SegmentKeeper
from baton.protocol import (
    Beat,
    Drain,
    Hello,
    Message,
    NewSequence,
    Plan,
    Result,
    Sampling,
    SetRole,
    TruncatePlan,
)
from baton.protocol.token_columns import pack
from baton_worker import service
from baton_worker.config import Config
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.engine import Engine
from baton_worker.service import Service
from baton_worker.standby import with_pages_of_others
from tests.fakes.host_link import HostLink
from tests.fakes.scheduler_planner import Planner, Sequence, run_all

SECONDS = 20.0


class Scheduler:
    """The server's half of the fleet link; `step` runs one plan on the worker and waits."""

    def __init__(self, run_dir: Path, incarnation: int = 1) -> None:
        self.server = Server(FLEET, socket_path(run_dir, FLEET))
        self.table = PeerTable(Hello("scheduler", "scheduler", incarnation, "0"))
        self.worker: Hello | None = None
        self.peer = b""
        self.beats: list[Beat] = []
        self.drains: list[Drain] = []
        self.results: list[Result] = []

    def pump(self, until: Callable[[], object]) -> None:
        """Answer messages until a condition holds."""
        end = time.monotonic() + SECONDS
        while not until():
            assert time.monotonic() < end, "the worker did not do what was expected"
            wait((self.server,), 0.02)
            for peer, envelope, message in self.server.drain():
                self._take(peer, message)
                if isinstance(message, Result):
                    assert envelope.epoch == message.epoch

    def _take(self, peer: bytes, message: Message) -> None:
        if isinstance(message, Hello):
            self.table.register(peer, message, time.monotonic())
            self.worker, self.peer = message, peer
            self.server.send(peer, self.table.me)
        elif isinstance(message, Beat):
            self.beats.append(message)
            self.server.send(peer, self.table.beat(message, time.monotonic()))
        elif isinstance(message, Drain):
            self.drains.append(message)
        elif isinstance(message, Result):
            self.results.append(message)

    def join(self) -> Hello:
        """Wait for the worker's Hello."""
        self.pump(lambda: self.worker)
        assert self.worker is not None
        return self.worker

    def send(self, plan: Message) -> None:
        assert self.server.send(self.peer, plan)

    def step(self, plan: Plan) -> Result:
        self.send(plan)
        self.pump(lambda: self.results and self.results[-1].step == plan.step)
        return self.results[-1]

    def planner(self) -> Planner:
        """A planner of this worker's epoch."""
        return Planner(self, num_pages=64, epoch=self.join().incarnation)


class Running:
    """A service in a thread; the engine is shared by the tests."""

    def __init__(self, engine: Engine, run_dir: Path) -> None:
        engine.reset()
        self.life = Lifecycle(drain_seconds=10)
        config = Config(name="w0", model="org/stories", run_dir=run_dir)
        self.service = Service(engine, config, StaticDirectory(config), self.life)
        self.code: int | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.code = self.service.run()
        except PlanError as error:
            self.error = error

    def join(self) -> None:
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def engine(stories: Path) -> Engine:
    return Engine.build(
        Config(
            model=str(stories), device="cpu", dtype="float32", num_gpu_blocks_override=64, threads=1
        )
    )


@pytest.fixture
def scheduler(run_dir: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler(run_dir)
    yield scheduler
    scheduler.server.close()


@pytest.fixture
def running(engine: Engine, run_dir: Path, scheduler: Scheduler) -> Iterator[Running]:
    running = Running(engine, run_dir)
    yield running
    running.life.draining_until = 0.0
    running.join()


def test_hello_says_what_the_worker_can(scheduler: Scheduler, running: Running) -> None:
    info = scheduler.join().worker
    assert info is not None
    assert (info.model, info.num_pages, info.page_size) == ("org/stories", 64, 16)
    assert (info.vocab_size, info.max_model_len, info.eos_ids) == (512, 512, (2,))
    assert (info.device, info.dtype) == ("cpu", "float32")
    assert info.weight_bytes > 0 and info.kv_bytes > 0


def test_a_role_that_was_changed_is_said_at_every_hello(
    scheduler: Scheduler, running: Running
) -> None:
    first = scheduler.join()
    assert first.worker is not None and first.worker.role == "both"
    scheduler.send(SetRole("w0", "decode"))
    scheduler.table.peers.clear()
    scheduler.pump(lambda: scheduler.worker is not first)
    again = scheduler.join()
    assert again.worker == structs.replace(first.worker, role="decode")
    assert again.incarnation != first.incarnation


def test_plans_become_results_and_beats_show_progress(
    scheduler: Scheduler, running: Running
) -> None:
    planner = scheduler.planner()
    sequence = Sequence([1, 403, 407], Sampling(8, temperature=0.0))
    run_all(planner, [sequence])
    assert len(sequence.log) == 8
    assert all(result.duration_us > 0 for result in scheduler.results)
    scheduler.pump(lambda: scheduler.beats and not scheduler.beats[-1].busy)
    assert scheduler.beats[-1].progress > planner.steps, "layers count, so a long step is no hang"


def test_plans_ahead_run_in_order(scheduler: Scheduler, running: Running) -> None:
    epoch = scheduler.join().incarnation
    for step in range(5, 9):
        scheduler.send(Plan(epoch, step, b"", b"", b"", b""))
    scheduler.pump(lambda: len(scheduler.results) == 4)
    assert [result.step for result in scheduler.results] == [5, 6, 7, 8]


def many_steps(epoch: int, steps: int) -> list[Plan]:
    """A prompt of three tokens, then so many steps in one plan."""
    one = {"rows": pack([0], "I"), "samples": b"\1"}
    new = NewSequence(0, pack([1, 403, 407]), 3, Sampling(300, temperature=0.0))
    pages = {
        "page_rows": pack([0], "I"),
        "page_counts": pack([20], "I"),
        "pages": pack(range(20), "I"),
    }
    enter = {
        "num_computed": pack([0], "I"),
        "num_scheduled": pack([3], "I"),
        "new_sequences": (new,),
    } | pages
    later = {
        "num_computed": pack([3], "I"),
        "num_scheduled": pack([1], "I"),
        "steps_per_row": pack([steps], "I"),
    }
    return [Plan(epoch, 1, **one, **enter), Plan(epoch, 2, num_steps=steps, **one, **later)]


def test_every_step_of_a_plan_has_a_result(scheduler: Scheduler, running: Running) -> None:
    epoch = scheduler.join().incarnation
    for plan in many_steps(epoch, 12):
        scheduler.send(plan)
    scheduler.pump(lambda: len(scheduler.results) == 13)
    assert [result.step for result in scheduler.results] == list(range(1, 14))
    assert [result.first for result in scheduler.results] == [pack([i], "I") for i in range(13)]
    assert not any(result.truncated_at for result in scheduler.results)


def test_a_cut_ends_a_plan_and_the_next_one_begins_there(
    scheduler: Scheduler, running: Running
) -> None:
    epoch = scheduler.join().incarnation
    for plan in many_steps(epoch, 200):
        scheduler.send(plan)
    scheduler.pump(lambda: len(scheduler.results) > 3)
    scheduler.send(TruncatePlan(epoch + 1, 2))  # Of another epoch: it means somebody else.
    scheduler.send(TruncatePlan(epoch, 2))
    scheduler.pump(lambda: any(result.truncated_at for result in scheduler.results))
    [until] = [result.truncated_at for result in scheduler.results if result.truncated_at]
    assert 4 < until < 201
    scheduler.send(Plan(epoch, until + 1, b"", b"", b"", b"", release=pack([0], "I")))
    scheduler.pump(lambda: scheduler.results[-1].step == until + 1)
    assert [result.step for result in scheduler.results] == list(range(1, until + 2))


def test_a_plan_of_another_epoch_is_dropped(scheduler: Scheduler, running: Running) -> None:
    epoch = scheduler.join().incarnation
    scheduler.send(Plan(epoch + 1, 7, b"", b"", b"", b""))
    assert scheduler.step(Plan(epoch, 1, b"", b"", b"", b"")).step == 1
    assert len(scheduler.results) == 1


@pytest.mark.row("F13.08")
def test_a_worker_that_launches_ahead_answers_when_no_plan_follows(
    engine: Engine, scheduler: Scheduler, run_dir: Path
) -> None:
    resolved = replace(engine.resolved, synchronous="")
    ahead = Engine(engine._loaded, resolved, link=HostLink())
    sampling = Sampling(12, temperature=0.0)
    engine.reset()
    expected = run_all(Planner(engine, num_pages=64), [Sequence([1, 403, 407], sampling)])
    running = Running(ahead, run_dir)
    try:
        planner = scheduler.planner()
        assert run_all(planner, [Sequence([1, 403, 407], sampling)]) == expected
        planner.step()
        assert ahead.idle
    finally:
        running.life.draining_until = 0.0
        running.join()
    # And without a service: a plan behind the one in flight brings its result.
    planner = Planner(ahead, num_pages=64, steps=planner.steps)
    ahead.reset()
    planner.add(Sequence([1, 403, 407], sampling))
    assert ahead.submit(planner.plan()) == [] and ahead.in_flight and not ahead.idle
    assert ahead.ready
    (result,) = ahead.finish()
    assert result.step == planner.steps and not ahead.in_flight and ahead.finish() == []


def test_a_new_scheduler_gets_an_empty_worker_of_a_new_epoch(
    engine: Engine, scheduler: Scheduler, running: Running, run_dir: Path
) -> None:
    planner = scheduler.planner()
    sequence = planner.add(Sequence([1, 403, 407], Sampling(12, seed=5)))
    for _ in range(4):
        planner.step()
    scheduler.server.close()
    second = Scheduler(run_dir, incarnation=2)
    try:
        assert second.join().incarnation != planner.epoch
        assert engine.idle
        (log,) = run_all(second.planner(), [sequence])
    finally:
        second.server.close()
    running.life.draining_until = 0.0
    running.join()
    engine_alone = Planner(engine, num_pages=64)
    engine.reset()
    assert log == run_all(engine_alone, [Sequence([1, 403, 407], Sampling(12, seed=5))])[0]


def test_a_connection_that_breaks_begins_a_new_epoch(
    engine: Engine, scheduler: Scheduler, running: Running, run_dir: Path
) -> None:
    """The same scheduler, at once: what was on its way to or from it is gone all the same."""
    planner = scheduler.planner()
    planner.add(Sequence([1, 403, 407], Sampling(12, seed=5)))
    planner.step()
    scheduler.server.close()
    scheduler.server = Server(FLEET, socket_path(run_dir, FLEET))
    scheduler.pump(lambda: scheduler.worker and scheduler.worker.incarnation != planner.epoch)
    assert engine.idle


def test_a_scheduler_that_forgot_the_worker_gets_it_back(
    scheduler: Scheduler, running: Running
) -> None:
    first = scheduler.join()
    scheduler.pump(lambda: scheduler.beats)
    scheduler.table.peers.clear()
    scheduler.pump(lambda: scheduler.worker != first)
    scheduler.pump(lambda: len(scheduler.beats) > 3)
    planner = scheduler.planner()
    sequence = Sequence([1, 2, 3], Sampling(3))
    assert len(run_all(planner, [sequence])[0]) == 3


def test_a_plan_that_does_not_fit_ends_the_worker(scheduler: Scheduler, running: Running) -> None:
    epoch = scheduler.join().incarnation
    scheduler.send(Plan(epoch, 1, b"", b"", b"", b"", release=b"\1\0\0\0"))
    running.join()
    assert isinstance(running.error, PlanError)


def test_draining_finishes_what_runs(scheduler: Scheduler, running: Running) -> None:
    planner = scheduler.planner()
    sequence = planner.add(Sequence([1, 403, 407], Sampling(6, temperature=0.0)))
    planner.step()
    running.life.stop()
    scheduler.pump(lambda: scheduler.drains)
    assert 0 < scheduler.drains[0].seconds <= 10
    planner.finish()
    assert len(sequence.log) == 6
    assert running.thread.is_alive()
    scheduler.send(planner.plan())
    running.join()
    assert running.code == 0


def test_the_scheduler_can_ask_to_drain(scheduler: Scheduler, running: Running) -> None:
    scheduler.join()
    scheduler.send(Drain())
    running.join()
    assert running.code == 0


def test_a_worker_waits_for_its_scheduler(engine: Engine, run_dir: Path) -> None:
    running = Running(engine, run_dir)
    time.sleep(0.3)
    late = Scheduler(run_dir)
    try:
        assert late.join().name == "w0"
    finally:
        running.life.stop()
        running.join()
        late.server.close()


def test_pages_that_the_last_worker_left_are_said_in_the_first_hello(
    engine: Engine, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.reset()
    config = Config(model="org/stories", run_dir=run_dir, threads=3)
    assert service.persistent_cache(engine, config) is None, "nobody keeps them"
    with SegmentKeeper(run_dir):
        pages = {3: bytes(range(16)), 5: bytes(range(1, 17))}
        first = service.persistent_cache(engine, config)
        assert first is not None and with_pages_of_others(config) is config
        first.put(pages)
        again = service.persistent_cache(engine, config)
        life, where = Lifecycle(drain_seconds=1), StaticDirectory(config)
        made = Service(engine, config, where, life, again)
        with made._scheduler:
            held = made._scheduler.hello.held
            made._kv_transfer.start()
            made._kv_transfer.close()
        assert held is not None and split_hashes(held) == pages
        standby.hold()
        same = with_pages_of_others(config)
        standby.call()
        assert same.num_gpu_blocks_override == engine.resolved.num_pages
        off = config.model_copy(update={"keep_kv_cache": False})
        assert service.persistent_cache(engine, off) is None
        kept = service.persistent_cache(engine, config)
        assert kept is not None and kept.hashes() == pages
        other = replace(engine.resolved, checkpoint_files=b"other")
        monkeypatch.setattr(engine, "resolved", other)
        empty = service.persistent_cache(engine, config)
        assert empty is not None and not empty.hashes(), "pages of other weights are not taken over"
