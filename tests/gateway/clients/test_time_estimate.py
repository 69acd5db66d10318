from __future__ import annotations

import msgspec
import pytest

from baton.protocol import Stats, WorkerStats
from baton_gateway.clients.time_estimate import TimeEstimate, estimate
from tests.fakes.gateway_engine import MODEL, worker


def measured(running: int = 0) -> WorkerStats:
    """10 ms a step, 1 ms a token, 100 tokens a step."""
    return msgspec.structs.replace(
        worker(running=running),
        seconds_per_step=0.01,
        seconds_per_token=0.001,
        tokens_per_step=100,
    )


def report(*workers: WorkerStats, waiting: int = 0, tokens: int = 0) -> Stats:
    return Stats(
        1, waiting=waiting, waiting_tokens=tokens, running=0, preemptions=0, finished=0, tokens=0,
        tokens_per_second=0.0, uptime=0.0, workers=workers,
    )  # fmt: skip


def test_an_idle_worker() -> None:
    found = estimate(report(measured()), MODEL, prompt_tokens=250, max_tokens=11)
    assert found == TimeEstimate(0, 0.0, 280.0, 110.0)
    assert found.total_ms == pytest.approx(390.0)


def test_the_queue_and_the_running_come_first() -> None:
    busy = report(measured(running=20), measured(running=20), waiting=4, tokens=600)
    found = estimate(busy, MODEL, prompt_tokens=160, max_tokens=2)
    # 2 steps of 80 tokens each, beside 20 sequences; the queue is shared by two workers
    assert found == TimeEstimate(4, 300.0, 220.0, 31.0)


def test_nothing_is_said_before_any_measurement() -> None:
    for stats in (None, report(worker()), report(measured())):
        model = "other" if stats and stats.workers[0].seconds_per_step else MODEL
        found = estimate(stats, model, 10, 10)
        assert found.total_ms is None and found.prefill_ms is None
