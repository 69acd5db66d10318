"""The service over real sockets, with fake workers and a hand-made gateway."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from baton import __version__
from baton.net.discovery import StaticDirectory
from baton.net.handshake import Greeting, incarnation
from baton.net.sockets import Client, wait
from baton.net.topology import FRONTEND
from baton.process.lifecycle import Lifecycle
from baton.protocol import (
    Abort,
    CacheReset,
    Envelope,
    Failed,
    Hello,
    Message,
    PhaseTimes,
    ResetCache,
    Sampling,
    Stats,
    Submit,
    Tokens,
)
from baton.protocol.token_columns import pack, unpack
from baton.settings import Settings
from baton_scheduler.config import Config
from baton_scheduler.replay.recorder import replay
from baton_scheduler.service import serve
from tests.fakes.hash_worker import FakeWorker, expected_tokens, worker_info


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short path: socket names are limited to about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="b-") as folder:
        yield Path(folder)


class Gateway:
    """A gateway's link to the scheduler, driven by hand."""

    def __init__(self, settings: Settings, name: str = "g") -> None:
        address = StaticDirectory(settings).first(FRONTEND)
        self.client = Client(FRONTEND, address, name.encode())
        self.greeting = Greeting(Hello("gateway", name, incarnation(), __version__))
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}
        self.failed: dict[int, Failed] = {}
        self.stats: Stats | None = None
        self.cached: dict[int, int] = {}
        self.resets: list[CacheReset] = []
        self.times: dict[int, PhaseTimes] = {}

    def turn(self) -> None:
        """Beat, and take in what has arrived."""
        now = time.monotonic()
        due = self.greeting.due(now)
        if due is not None:
            self.client.send(due)
        wait((self.client,), 0.01)
        for received in self.client.drain():
            self.greeting.heard(received.message, now)
            self._take(received.message)

    def _take(self, message: Message) -> None:
        if isinstance(message, Stats):
            self.stats = message
        elif isinstance(message, Failed):
            assert message.handle not in self.ends
            self.ends[message.handle], self.failed[message.handle] = "failed", message
        elif isinstance(message, CacheReset):
            self.resets.append(message)
        elif isinstance(message, Tokens):
            self.cached |= message.cached
            tokens = iter(unpack(message.tokens))
            for handle, first in zip(
                unpack(message.handles, "I"), unpack(message.first, "I"), strict=True
            ):
                log = self.tokens.setdefault(handle, [])
                assert first == len(log) and handle not in self.ends
                log.append(next(tokens))
            self.ends |= message.finished
            self.times |= message.phase_times

    def until(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        """Take part until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            self.turn()

    def join(self) -> None:
        self.until(lambda: self.greeting.server is not None)

    def submit(self, handle: int, prompt: list[int], sampling: Sampling) -> None:
        assert self.client.send(Submit(handle, f"r{handle}", pack(prompt), sampling))

    def worker_states(self) -> dict[str, str]:
        return {} if self.stats is None else {w.name: w.state for w in self.stats.workers}


@contextmanager
def scheduler(config: Config) -> Iterator[Lifecycle]:
    """The real service in a thread."""
    life, codes = Lifecycle(drain_seconds=10.0), []
    thread = threading.Thread(target=lambda: codes.append(serve(config, life)), daemon=True)
    thread.start()
    try:
        yield life
    finally:
        life.stop()
        thread.join(timeout=15)
    assert codes == [0]


@contextmanager
def gateway(settings: Settings, name: str = "g") -> Iterator[Gateway]:
    made = Gateway(settings, name)
    with made.client:
        made.join()
        yield made


def requests(count: int, max_tokens: int = 20) -> dict[int, tuple[list[int], Sampling]]:
    return {n: ([n, n + 1, n + 2], Sampling(max_tokens, seed=n)) for n in range(1, count + 1)}


@pytest.mark.row("F13.01")
def test_tokens_of_many_sequences_arrive_whole_and_in_order(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    wanted = requests(40)
    with scheduler(config), gateway(config) as g, FakeWorker(config):
        for handle, (prompt, sampling) in wanted.items():
            g.submit(handle, prompt, sampling)
        g.until(lambda: len(g.ends) == len(wanted))
    for handle, (prompt, sampling) in wanted.items():
        assert (g.tokens[handle], g.ends[handle]) == expected_tokens(prompt, sampling)


def test_times_are_those_of_the_messages_and_not_of_the_round_before(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    with scheduler(config), gateway(config) as g, FakeWorker(config, step_ms=20.0):
        g.until(lambda: g.worker_states().get("fake") == "ready")
        began = time.monotonic()
        g.submit(1, [1, 2, 3], Sampling(10, seed=1))
        g.until(lambda: g.ends)
        wall = time.monotonic() - began
        g.submit(2, [1, 2, 3], Sampling(10**6, seed=1, stop_ids=()))
        g.until(lambda: 2 in g.tokens)
        g.client.send(Abort(pack([2], "I")))
        g.until(lambda: 2 in g.times)
    spent = g.times[1]
    assert spent.queued >= 0 and spent.decode > 0
    # A message that is read late makes the prefill longer and what follows shorter.
    assert spent.prefill >= 0.02 and spent.prefill + spent.decode >= 10 * 0.02
    assert spent.queued + spent.prefill + spent.decode <= wall
    assert g.times[2].prefill > 0


def test_two_gateways_hear_only_of_their_own(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    with (
        scheduler(config),
        gateway(config, "north") as north,
        gateway(config, "south") as south,
        FakeWorker(config),
    ):
        north.submit(1, [1], Sampling(9, seed=1))
        south.submit(1, [2], Sampling(9, seed=2))
        north.until(lambda: north.ends)
        south.until(lambda: south.ends)
    assert north.tokens == {1: expected_tokens([1], Sampling(9, seed=1))[0]}
    assert south.tokens == {1: expected_tokens([2], Sampling(9, seed=2))[0]}


@pytest.mark.row("F13.05")
def test_a_worker_that_dies_is_replaced_and_no_token_differs(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    wanted = requests(8, max_tokens=60)
    with scheduler(config), gateway(config) as g:
        first = FakeWorker(config, name="first", step_ms=5.0)
        with first:
            for handle, (prompt, sampling) in wanted.items():
                g.submit(handle, prompt, sampling)
            g.until(lambda: len(g.tokens) == len(wanted))
        assert not g.ends
        with FakeWorker(config, name="second"):
            g.until(lambda: len(g.ends) == len(wanted))
            g.until(lambda: g.stats is not None and g.stats.worker_losses == 1)
    for handle, (prompt, sampling) in wanted.items():
        assert (g.tokens[handle], g.ends[handle]) == expected_tokens(prompt, sampling)


@pytest.mark.row("F13.09")
def test_workers_that_end_together_are_given_up_together(run_dir: Path) -> None:
    """Were one of them still given what the other lost, that would be lost twice, and refused."""
    config = Config(run_dir=run_dir)
    info = structs.replace(worker_info(), expert_group="experts")
    wanted = requests(8, max_tokens=60)
    with scheduler(config), gateway(config) as g, FakeWorker(config, info, name="b", step_ms=5.0):
        with FakeWorker(config, info, name="a", step_ms=5.0):
            g.until(lambda: g.worker_states() == {"a": "ready", "b": "ready"})
            for handle, (prompt, sampling) in wanted.items():
                g.submit(handle, prompt, sampling)
            g.until(lambda: len(g.tokens) == len(wanted))
        assert not g.ends
        g.until(lambda: g.stats is not None and g.stats.worker_losses == 2)
        g.until(lambda: len(g.ends) == len(wanted))  # The other one has begun anew.
    for handle, (prompt, sampling) in wanted.items():
        assert (g.tokens[handle], g.ends[handle]) == expected_tokens(prompt, sampling)


def test_a_worker_that_hangs_is_taken_out_and_comes_back(run_dir: Path) -> None:
    config = Config(run_dir=run_dir, worker_hang_seconds=0.4)
    with scheduler(config), gateway(config) as g, FakeWorker(config, step_ms=2.0) as worker:
        g.submit(1, [1], Sampling(400, seed=1))
        g.until(lambda: g.tokens)
        worker.hanging.set()
        g.until(lambda: g.worker_states() == {"fake": "hung"})
        worker.hanging.clear()
        g.until(lambda: g.ends)
        g.until(lambda: g.worker_states() == {"fake": "ready"})
    assert (g.tokens[1], g.ends[1]) == expected_tokens([1], Sampling(400, seed=1))


def test_an_aborted_sequence_frees_its_pages_and_is_silent(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    with scheduler(config), gateway(config) as g, FakeWorker(config, step_ms=2.0):
        g.submit(1, [1], Sampling(1500))
        g.until(lambda: g.tokens)
        g.client.send(Abort(pack([1], "I")))
        g.until(lambda: g.stats and g.stats.running == 0 and g.stats.workers)
        assert g.stats is not None
        (worker,) = g.stats.workers
        assert worker.pages_free == worker.pages_total
        heard = len(g.tokens[1])
        g.submit(2, [2], Sampling(5))
        g.until(lambda: 2 in g.ends)
        assert len(g.tokens[1]) == heard and 1 not in g.ends


def test_a_gateway_that_falls_silent_leaves_nothing_running(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    with (
        scheduler(config),
        gateway(config, "watcher") as watcher,
        FakeWorker(config, step_ms=5.0),
    ):
        with gateway(config, "gone") as gone:
            gone.submit(1, [1], Sampling(1900))
            gone.until(lambda: gone.tokens)
            watcher.until(lambda: watcher.stats and watcher.stats.running == 1)
        watcher.until(lambda: watcher.stats and watcher.stats.running == 0)


def test_a_worker_with_another_vocabulary_of_the_same_model_is_not_taken_in(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    with scheduler(config), gateway(config) as g, FakeWorker(config, name="one"):
        g.until(lambda: "one" in g.worker_states())
        with FakeWorker(config, worker_info(vocab_size=7), name="two") as two:
            g.submit(1, [1], Sampling(200))
            g.until(lambda: g.ends)
            assert not two.joined.is_set()
        assert list(g.worker_states()) == ["one"]


def test_workers_of_two_models_get_what_is_submitted_to_theirs(run_dir: Path) -> None:
    config, sampling = Config(run_dir=run_dir), Sampling(20)
    other = worker_info(model="other", vocab_size=7)
    with (
        scheduler(config),
        gateway(config) as g,
        FakeWorker(config, name="one"),
        FakeWorker(config, other, name="two"),
    ):
        g.until(lambda: set(g.worker_states()) == {"one", "two"})
        for handle, model in enumerate(("fake", "other") * 4):
            submit = Submit(handle, f"r{handle}", pack([1]), sampling, model=model)
            assert g.client.send(submit)
        g.until(lambda: len(g.ends) == 8)
        assert g.tokens[0] == expected_tokens([1], sampling)[0]
        assert g.tokens[1] == expected_tokens([1], sampling, 7)[0] != g.tokens[0]
        assert {g.times[handle].worker for handle in range(0, 8, 2)} == {"one"}
        assert {g.times[handle].worker for handle in range(1, 8, 2)} == {"two"}


def test_workers_that_can_pass_no_keys_to_each_other_are_named_once(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For example one of two ranks and one of four."""
    config = Config(run_dir=run_dir)
    crowd = [
        structs.replace(worker_info(pages_address=name), kv_layout=layout)
        for name, layout in (("one", "x/2"), ("two", "x/2"), ("three", "x/4"), ("four", "x/4"))
    ]
    with scheduler(config), gateway(config) as g, ExitStack() as stack:
        for info in crowd:
            stack.enter_context(FakeWorker(config, info, name=info.kv_address))
            g.until(lambda name=info.kv_address: name in g.worker_states())
    said = [r.getMessage() for r in caplog.records if "no keys pass" in r.getMessage()]
    assert len(said) == 1 and "one (x/2) and three (x/4)" in said[0]


def test_draining_finishes_what_runs_and_refuses_what_comes(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    with scheduler(config) as life, gateway(config) as g, FakeWorker(config, step_ms=5.0):
        g.submit(1, [1], Sampling(60))
        g.until(lambda: g.tokens)
        life.stop()
        g.submit(2, [2], Sampling(5))
        g.until(lambda: len(g.ends) == 2)
    assert (g.ends[1], g.failed[2].code) == ("length", "shutting_down")


def test_a_recorded_service_replays_to_the_same_decisions(run_dir: Path) -> None:
    config = Config(run_dir=run_dir, event_log=run_dir / "events")
    with scheduler(config), gateway(config) as g, FakeWorker(config):
        for handle, (prompt, sampling) in requests(10).items():
            g.submit(handle, prompt, sampling)
        g.until(lambda: len(g.ends) == 10)
    verdict = replay(run_dir / "events")
    assert verdict.difference is None and not verdict.truncated
    assert verdict.num_ticks > 5


@pytest.mark.row("F12.02", "F12.12")
def test_a_hit_is_told_and_a_reset_is_answered(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    prompt = list(range(50))
    with scheduler(config), gateway(config) as g, FakeWorker(config):
        for handle in (1, 2):
            g.submit(handle, prompt, Sampling(5, seed=handle))
            g.until(lambda handle=handle: handle in g.ends)
        g.until(lambda: g.stats and g.stats.prefix_hits)
        assert g.stats is not None and g.cached == {2: 49}
        assert (g.stats.prefix_queries, g.stats.workers[0].pages_cached) == (100, 5)
        g.client.send(ResetCache(9))
        g.until(lambda: g.resets)
        assert g.resets == [CacheReset(9, 5)]


def test_a_deadline_comes_with_the_envelope(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    with scheduler(config), gateway(config) as g, FakeWorker(config, step_ms=5.0):
        submit = Submit(1, "r", pack([1]), Sampling(1900))
        g.client.send(submit, Envelope(deadline_ms=200))
        g.until(lambda: g.ends)
    assert (g.failed[1].status, g.failed[1].code) == (504, "deadline_exceeded")
    assert 0 < len(g.tokens[1]) < 1900
