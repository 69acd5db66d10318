"""Gateways come, ask and go, over real sockets."""

from __future__ import annotations

from pathlib import Path

from baton.protocol import (
    Abort,
    Envelope,
    Sampling,
    Submit,
)
from baton.protocol.token_columns import pack
from baton_scheduler.config import Config
from tests.fakes.hash_worker import FakeWorker, expected_tokens
from tests.support.scheduler.running_service import gateway, scheduler


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


def test_a_deadline_comes_with_the_envelope(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    with scheduler(config), gateway(config) as g, FakeWorker(config, step_ms=5.0):
        submit = Submit(1, "r", pack([1]), Sampling(1900))
        g.client.send(submit, Envelope(deadline_ms=200))
        g.until(lambda: g.ends)
    assert (g.failed[1].status, g.failed[1].code) == (504, "deadline_exceeded")
    assert 0 < len(g.tokens[1]) < 1900
