"""Sequences that end before their time."""

from __future__ import annotations

from baton.protocol import Sampling
from baton_scheduler.events import (
    Closing,
)
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World, failure


def test_without_a_worker_requests_wait_and_are_then_refused() -> None:
    world = World(SchedulerOptions(no_worker_seconds=2.0))
    world.tick()
    early = world.submit([1], Sampling(1))
    world.tick(1.5)
    late = world.submit([1], Sampling(1))
    world.tick(1.0)
    assert (failure(early).status, failure(early).code) == (503, "no_worker")
    assert failure(early).retry_after >= 1 and late.end is None
    world.join("w")
    world.finish()
    assert late.end == "length"


def test_patience_starts_anew_when_the_last_worker_goes() -> None:
    world = World(SchedulerOptions(no_worker_seconds=2.0))
    world.join("w")
    request = world.submit([1], Sampling(500))
    for _ in range(300):
        world.round()
    world.lose_worker()
    world.tick(1.0)
    world.tick(1.5)
    assert request.end is None
    world.tick(1.0)
    assert failure(request).code == "no_worker"


def test_a_gateway_that_goes_takes_its_sequences_along() -> None:
    world = World()
    world.join("w")
    gone = world.submit([1], Sampling(9), "north")
    stays = world.submit([2], Sampling(9), "south")
    for _ in range(3):
        world.round()
    world.lose_gateway("north")
    world.finish()
    assert (gone.end, stays.end) == ("abort", "length")


def test_closing_tells_every_sequence() -> None:
    world = World()
    world.join("w", worker_info(max_num_seqs=1))
    requests = [world.submit([n], Sampling(9)) for n in range(3)]
    world.round()
    world.apply(Closing())
    assert {failure(request).code for request in requests} == {"shutting_down"}
    assert world.state.idle


def test_a_deadline_ends_what_waits_and_what_runs_with_different_errors() -> None:
    world = World()
    world.join("w", worker_info(max_num_seqs=1))
    runs = world.submit([1], Sampling(500), deadline_ms=200)
    waits = world.submit([2], Sampling(5), deadline_ms=100)
    free = world.submit([3], Sampling(5))
    for _ in range(30):
        world.round()
    assert (failure(waits).status, failure(waits).code) == (503, "queue_timeout")
    assert failure(waits).retry_after >= 1 and waits.tokens == []
    assert (failure(runs).status, failure(runs).code) == (504, "deadline_exceeded")
    assert 5 < len(runs.tokens) < 25 and free.end == "length"
    assert world.state.idle


def test_what_ends_in_time_never_hears_of_its_deadline() -> None:
    world = World()
    world.join("w")
    requests = [world.submit([n], Sampling(3), deadline_ms=1000) for n in range(5)]
    world.finish()
    world.tick(5.0)
    assert {request.end for request in requests} == {"length"}
