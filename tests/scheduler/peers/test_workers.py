"""Workers that die, end together, hang and differ, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs

from baton.net.discovery import StaticDirectory
from baton.net.sockets import Client, Server
from baton.net.topology import FLEET
from baton.protocol import (
    Hello,
    ProcessDied,
    Sampling,
    Sleep,
    WorkerCommand,
    WorkerInfo,
    WorkerReply,
)
from baton_scheduler.config import Config
from baton_scheduler.events import Event, WorkerLeft, WorkerMessage
from baton_scheduler.peers.workers import Hooks, WorkerPeers
from baton_scheduler.workers.fleet import Fleet
from tests.fakes.hash_worker import FakeWorker, expected_tokens, worker_info
from tests.fakes.random_messages import Inbox
from tests.support.scheduler.running_service import gateway, requests, scheduler


@pytest.mark.row("F13.05")
def test_a_worker_that_dies_is_replaced_and_no_token_differs(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    wanted = requests(8, max_tokens=240)
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


@pytest.mark.parametrize(("inside", "first"), [(False, True), (False, False), (True, False)])
def test_a_supervisor_tells_whether_the_request_was_to_blame(
    run_dir: Path, inside: bool, first: bool
) -> None:
    """Before or after the connection is seen to be gone."""
    config = Config(run_dir=run_dir, max_worker_losses=1)
    info = structs.replace(worker_info(), process="host-7", supervised=True)
    with scheduler(config), gateway(config) as g, supervisor(config) as s:
        with FakeWorker(config, info, name="w", step_ms=5.0) as worker:
            g.submit(1, [1], Sampling(80, seed=1))
            g.until(lambda: g.tokens)
            if first:
                worker.hanging.set()  # The dead do not join again.
                g.until(lambda: s.send(ProcessDied("host-7", inside)))
                g.until(lambda: g.stats is not None and g.stats.worker_losses == 1)
        with FakeWorker(config, structs.replace(info, process="host-8"), name="w"):
            g.until(lambda: g.stats is not None and g.stats.worker_losses == 1)
            if not first:
                assert not g.ends and not g.failed
                g.until(lambda: s.send(ProcessDied("host-7", inside)))
            g.until(lambda: g.ends or g.failed)
    assert [f.code for f in g.failed.values()] == ["request_quarantined"] * inside
    assert inside or (g.tokens[1], g.ends[1]) == expected_tokens([1], Sampling(80, seed=1))


@contextmanager
def supervisor(config: Config) -> Iterator[Client]:
    with Client(FLEET, StaticDirectory(config).first(FLEET), b"supervisor-1") as client:
        yield client


@pytest.mark.row("F13.09")
def test_workers_that_end_together_are_given_up_together(run_dir: Path) -> None:
    """Were one of them still given what the other lost, that would be lost twice, and refused."""
    config = Config(run_dir=run_dir)
    info = structs.replace(worker_info(), expert_group="experts")
    wanted = requests(8, max_tokens=240)
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


@pytest.mark.parametrize(("supervised", "losses"), [(True, 1), (False, 2)])
def test_a_connection_that_broke_and_came_back_was_no_death(
    run_dir: Path, supervised: bool, losses: int
) -> None:
    """Without a supervisor it counts until the process is back, and never twice."""
    config = Config(run_dir=run_dir, max_worker_losses=losses)
    info = structs.replace(worker_info(), process="host-7", supervised=supervised)
    with scheduler(config), gateway(config) as g:
        for lost in range(3):  # The same process, as far as its name tells.
            with FakeWorker(config, info, step_ms=5.0):
                g.submit(1, [1], Sampling(80, seed=1)) if not lost else None
                g.until(lambda lost=lost: len(g.tokens.get(1, ())) > 10 * lost or g.failed)
            if not supervised:  # Its report is awaited for a second only.
                g.until(lambda lost=lost: g.stats and g.stats.worker_losses > lost)
        with FakeWorker(config, info):
            g.until(lambda: g.ends or g.failed)
    assert (g.tokens[1], g.ends[1]) == expected_tokens([1], Sampling(80, seed=1))


def test_a_name_that_is_taken_stalls_nobody(run_dir: Path) -> None:
    """The second one joins when the first one is gone."""
    config, sampling = Config(run_dir=run_dir), Sampling(200, seed=1)
    first = FakeWorker(config, name="w", step_ms=5.0)
    late = FakeWorker(config, name="w")
    with scheduler(config), gateway(config) as g, first:
        g.submit(1, [1], sampling)
        g.until(lambda: g.tokens)
        with late:
            g.until(lambda: g.ends)
            assert g.stats is not None and g.stats.worker_losses == 0
            assert first.joined.is_set() and not late.joined.is_set()
            first.close()
            g.submit(2, [2], sampling)
            g.until(lambda: len(g.ends) == 2)
            assert late.joined.is_set()
    assert (g.tokens[1], g.ends[1]) == expected_tokens([1], sampling)
    assert (g.tokens[2], g.ends[2]) == expected_tokens([2], sampling)


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
    said = [r.getMessage() for r in caplog.records if "no KV passes" in r.getMessage()]
    assert len(said) == 1 and "one (x/2) and three (x/4)" in said[0]


def test_embeddings_that_nobody_takes_are_said(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(run_dir=run_dir)
    encoder = WorkerInfo(
        "fake", 0, 0, 0, 0, 0, 0, role="encode", kv_address="e", encoder_layout="bf16"
    )
    with scheduler(config), gateway(config) as g, ExitStack() as stack:
        for name, info in (("w", worker_info(encoder_layout="f32")), ("e", encoder)):
            stack.enter_context(FakeWorker(config, info, name=name))
            g.until(lambda name=name: name in g.worker_states())
    assert any(
        "no worker takes the embeddings of e (bf16)" in r.getMessage() for r in caplog.records
    )


def test_a_worker_that_falls_asleep_may_be_silent_for_longer() -> None:
    """What frees its memory holds the interpreter lock: its thread sends no beats meanwhile."""
    now, inbox, events = 0.0, Inbox(), list[Event]()
    unused = cast(Any, None)
    hooks = Hooks(events.append, lambda: now, unused, lambda: None)
    peers = WorkerPeers(cast(Server, inbox), Hello("scheduler", "s", 1, "0"), Fleet(), hooks, 5.0)

    def lost_until(end: float) -> list[str]:
        nonlocal now
        before = len(events)
        while now < end:
            now += 0.1
            peers.expire(now)
        return [event.name for event in events[before:] if isinstance(event, WorkerLeft)]

    for name in ("sleeps", "silent"):
        inbox.put(name.encode(), Hello("worker", name, 2, "0", worker=worker_info()))
    peers.receive()
    peers.send(WorkerMessage("sleeps", WorkerCommand(2, 1, Sleep(1))))
    assert lost_until(4.0) == ["silent"]
    inbox.put(b"sleeps", WorkerReply(2, 1))
    peers.receive()
    assert lost_until(4.2) == ["sleeps"], "it has answered: it is as silent as any"
