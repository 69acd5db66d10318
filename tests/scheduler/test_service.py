"""The service over real sockets, with fake workers and a hand-made gateway."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from baton.protocol import (
    Abort,
    CacheReset,
    ResetCache,
    Sampling,
    Submit,
)
from baton.protocol.token_columns import pack
from baton_scheduler.config import Config
from baton_scheduler.replay.recorder import replay
from tests.fakes.hash_worker import FakeWorker, expected_tokens, worker_info
from tests.support.scheduler.running_service import gateway, requests, scheduler


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
        started_at = time.monotonic()
        g.submit(1, [1, 2, 3], Sampling(10, seed=1))
        g.until(lambda: g.ends)
        wall = time.monotonic() - started_at
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


def test_draining_finishes_what_runs_and_refuses_what_comes(run_dir: Path) -> None:
    config = Config(run_dir=run_dir)
    life_time, worker = scheduler(config, drain_seconds=60.0), FakeWorker(config, step_ms=25.0)
    with life_time as life, gateway(config) as g, worker:
        g.submit(1, [1], Sampling(200))  # Five seconds, in which a busy machine sends the next.
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
