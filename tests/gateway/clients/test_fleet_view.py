"""Health requires progress."""

from __future__ import annotations

import pytest

from baton.protocol import Stats, WorkerStats
from baton_gateway.clients.fleet_view import SILENT_SECONDS, FleetView
from tests.fakes.gateway_engine import worker


def _stats(*workers: WorkerStats) -> Stats:
    return Stats(
        1, waiting=0, waiting_tokens=0, running=0, preemptions=0, finished=0, tokens=0,
        tokens_per_second=0.0, uptime=0.0, workers=workers,
    )  # fmt: skip


def _watch(*reports: tuple[float, WorkerStats]) -> FleetView:
    fleet = FleetView(hang_seconds=5.0)
    for now, report in reports:
        fleet.report(_stats(report), now)
    return fleet


@pytest.mark.row("F19.01")
@pytest.mark.parametrize(
    ("reports", "hung"),
    [
        ([(0.0, worker(running=1, steps=1)), (6.0, worker(running=1, steps=1))], True),
        ([(0.0, worker(running=1, steps=1)), (4.0, worker(running=1, steps=1))], False),
        ([(0.0, worker(running=1, steps=1)), (6.0, worker(running=1, steps=2))], False),
        ([(0.0, worker(running=0, steps=1)), (6.0, worker(running=0, steps=1))], False),
        # Work arrives after a long idle time: the clock begins with the work.
        ([(0.0, worker(steps=1)), (60.0, worker(steps=1)), (61.0, worker(running=1))], False),
        ([(0.0, worker("hung"))], True),
    ],
)
def test_hang(reports: list[tuple[float, WorkerStats]], hung: bool) -> None:
    fleet, now = _watch(*reports), reports[-1][0]
    assert fleet.hung(now) == (["worker-1"] if hung else [])
    assert fleet.has_ready_worker(now) is not hung
    assert fleet.unhealthy_reasons(now) == (["worker worker-1 is hung"] if hung else [])
    assert fleet.workers(now)[0]["state"] == ("hung" if hung else "ready")


def test_silence() -> None:
    fleet = _watch((0.0, worker()))
    assert not fleet.silent(SILENT_SECONDS)
    assert fleet.silent(SILENT_SECONDS + 0.1)
    assert fleet.unhealthy_reasons(60.0) == ["the scheduler is silent"]
    fleet.forget()
    assert fleet.silent(0.0) and not fleet.has_ready_worker(0.0) and fleet.workers(0.0) == []


def test_worker_that_leaves_is_not_remembered() -> None:
    fleet = _watch((0.0, worker(running=1, steps=1)))
    fleet.report(_stats(), 1.0)
    fleet.report(_stats(worker(running=1, steps=1)), 9.0)
    assert fleet.hung(9.0) == []
