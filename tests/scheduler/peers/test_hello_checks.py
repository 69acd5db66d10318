"""Who may not join."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from baton.protocol import (
    PROTOCOL,
    HeldPages,
    Hello,
    Sampling,
    WorkerInfo,
)
from baton_scheduler.config import Config
from baton_scheduler.peers.hello_checks import RefusalLog, version_mismatch, why_worker_refused
from baton_scheduler.workers.fleet import Fleet
from tests.fakes.hash_worker import FakeWorker, worker_info
from tests.support.scheduler.running_service import gateway, scheduler
from tests.support.scheduler_world import World


def test_a_worker_with_another_vocabulary_of_the_same_model_is_not_taken_in(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    with scheduler(config), gateway(config) as g, FakeWorker(config, name="one"):
        g.until(lambda: "one" in g.worker_states())
        with FakeWorker(config, worker_info(vocab_size=7), name="two") as two:
            g.submit(1, [1], Sampling(200))
            g.until(lambda: g.ends)
            assert not two.joined.is_set()
        assert list(g.worker_states()) == ["one"]


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (None, "what it can do"),
        (worker_info(num_pages=0), "sizes"),
        (worker_info(num_pages=2**28), "sizes"),
        (worker_info(max_num_seqs=2**16 + 1), "sizes"),
        (worker_info(model=""), "name its model"),
        (worker_info(vocab_size=7), "tokens here"),
        (worker_info(vocab_size=7, model="other"), ""),
        (worker_info(), ""),
    ],
)
def test_a_worker_is_refused_with_a_reason(info: WorkerInfo | None, reason: str) -> None:
    fleet = Fleet()
    fleet.join("known", 1, worker_info(), 64, held=None, caching=True)
    found = why_worker_refused(Hello("worker", "new", 2, "0", worker=info), fleet)
    assert (reason in found) if reason else not found


def test_a_worker_that_was_given_up_with_plans_needs_a_new_epoch() -> None:
    world = World()
    world.join("w")
    world.submit([1], Sampling(3))
    world.tick()
    worker, fleet = world.state.fleet.get("w"), world.state.fleet
    assert worker is not None
    again = Hello("worker", "w", worker.epoch, "0", worker=worker_info())
    assert not why_worker_refused(again, fleet)
    world.lose_worker("w")
    assert "given up" in why_worker_refused(again, fleet)
    assert not why_worker_refused(structs.replace(again, incarnation=worker.epoch + 1), fleet)


def test_pages_that_are_not_there_cannot_be_held() -> None:
    hello = Hello("worker", "w", 1, "0", worker=worker_info(num_pages=4), held=HeldPages(b"x"))
    assert "pages" in why_worker_refused(hello, Fleet())


def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    refusals, hello = RefusalLog(), Hello("worker", "w", 1, "0", protocol=0)
    reason = version_mismatch(hello)
    for _ in range(3):
        refusals.add(hello, reason)
    assert caplog.text.count("w may not join") == 1 and "upgrade w" in caplog.text
    assert not version_mismatch(structs.replace(hello, protocol=PROTOCOL))


def test_an_encode_worker_needs_an_address_and_a_layout_but_no_pages() -> None:
    good = WorkerInfo(
        "m", 0, 0, 0, 0, 0, 0, role="encode", kv_address="tcp://e", encoder_layout="f32"
    )
    said = []
    for without in ("", "encoder_layout", "kv_address", "model"):
        info = structs.replace(good, **{without: ""}) if without else good
        hello = Hello("worker", "e", 1, "0", worker=info)
        said.append(why_worker_refused(hello, Fleet()))
    unclear = "it does not say where and what it encodes"
    assert said == ["", unclear, unclear, "it does not name its model"]
