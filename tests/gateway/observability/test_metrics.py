"""Prometheus metrics."""

from __future__ import annotations

import pytest
from msgspec import structs

from baton.protocol import RoleStats, Stats, TransferStats
from baton_gateway.observability.metrics import Metrics, SystemCollector, Timing
from tests.fakes.gateway_engine import FakeScheduler


def test_a_generation_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("baton_gateway.observability.metrics.time.monotonic", lambda: clock[0])
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    timing = Timing(metrics)
    assert value("baton_gateway_requests") == 1
    timing.started(7)
    for at, choice, count in ((2.0, 0, 1), (3.0, 1, 1), (6.0, 0, 4)):
        clock[0] = at
        timing.tokens(choice, count)
    clock[0] = 9.0
    timing.ended(complete=True)
    assert value("baton_time_to_first_token_seconds_sum") == 2.0
    # Four tokens came together after four seconds; the first of choice 1 has none before it.
    assert value("baton_inter_token_latency_seconds_sum") == 1.0
    assert value("baton_inter_token_latency_seconds_count") == 1
    assert value("baton_e2e_request_latency_seconds_sum") == 9.0
    assert value("baton_request_generation_tokens_sum") == 6
    assert value("baton_request_prompt_tokens_sum") == value("baton_prompt_tokens_total") == 7
    assert value("baton_gateway_requests") == value("baton_requests_aborted_total") == 0


def test_a_generation_that_breaks_off() -> None:
    metrics = Metrics()
    Timing(metrics).ended(complete=False)
    assert metrics.registry.get_sample_value("baton_requests_aborted_total") == 1
    assert metrics.registry.get_sample_value("baton_e2e_request_latency_seconds_count") == 0


def test_no_report_is_no_number() -> None:
    metrics = Metrics()
    reports: list[Stats] = []
    SystemCollector(metrics, lambda: reports[0] if reports else None)
    assert metrics.registry.get_sample_value("baton_num_requests_running") is None
    reports.append(FakeScheduler().stats())
    assert metrics.registry.get_sample_value("baton_num_requests_running") == 0
    assert metrics.registry.get_sample_value("baton_worker_step_ms", {"worker": "worker-1"}) == 2.0
    assert metrics.registry.get_sample_value("baton_worker_gap_ms", {"worker": "worker-1"}) == 0.0


def test_workers_that_share_experts_tell_how_even_they_are() -> None:
    metrics, first = Metrics(), FakeScheduler().stats()
    worker, *_ = first.workers
    found = {"expert_balancedness": 0.75, "expert_rearrangements": 2}
    each = (worker, structs.replace(worker, name="other", **found))
    SystemCollector(metrics, lambda: structs.replace(first, workers=each))
    value = metrics.registry.get_sample_value
    for name, number in (("balancedness", 0.75), ("rearrangements_total", 2)):
        assert value(f"baton_worker_expert_{name}", {"worker": "other"}) == number
        assert value(f"baton_worker_expert_{name}", {"worker": worker.name}) is None


def test_what_an_autoscaler_follows() -> None:
    metrics, scheduler = Metrics(), FakeScheduler()
    pressure = {"queue": 1.5, "kv": 0.25}
    role = RoleStats("decode", 2, 3, 3.0, 0.0, 0.07, pressure)
    stats = structs.replace(scheduler.stats(), roles=(role,), transferred_tokens=99)
    SystemCollector(metrics, lambda: stats)
    value, of = metrics.registry.get_sample_value, {"role": "decode"}
    assert value("baton_scale_desired_workers", of) == 3
    assert value("baton_scale_ready_workers", of) == 2
    assert value("baton_scale_queue_seconds", of) == 3.0
    assert value("baton_scale_itl_seconds", of) == 0.07
    assert value("baton_scale_pressure_ratio", of | {"part": "queue"}) == 1.5
    assert value("baton_scale_desired_workers", {"role": "prefill"}) is None
    assert value("baton_transferred_tokens_total") == 99


def test_transfers_are_told_by_transport() -> None:
    metrics = Metrics()
    rows = (TransferStats("none", 0, 2, 0, 0.0), TransferStats("shm", 7, 1, 4096, 0.5))
    stats = structs.replace(FakeScheduler().stats(), transfers=rows)
    SystemCollector(metrics, lambda: stats)
    value = metrics.registry.get_sample_value
    over = {"transport": "shm"}
    assert value("baton_transfers_total", over | {"outcome": "done"}) == 7
    assert value("baton_transfers_total", over | {"outcome": "failed"}) == 1
    assert value("baton_transfers_total", {"transport": "none", "outcome": "failed"}) == 2
    assert value("baton_transfer_bytes_total", over) == 4096
    assert value("baton_transfer_seconds_total", over) == 0.5
