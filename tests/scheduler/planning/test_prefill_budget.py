"""Prompts make steps with decode rows no longer than a bound, by the measured times."""

from __future__ import annotations

import pytest

from baton.protocol import Blob, Media, Sampling
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.planning.prefill_budget import prefill_budget
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler.one_worker import rows
from tests.support.scheduler_world import World

PER_STEP, PER_TOKEN = 0.01, 0.001
IMAGE = Media(b"a" * 32, 1, 60, Blob("float32", (1,), bytes(4)), spans=((0, 60),))


def world(max_itl_ms: float) -> World:
    """A worker with a batch of one stream and measured steps of 10 ms and 1 ms per token."""
    made = World(SchedulerOptions(max_itl_ms=max_itl_ms))
    made.join("w", worker_info(page_size=8, max_num_batched_tokens=256))
    made.submit([1, 2, 3], Sampling(40, seed=1))
    made.round()
    made.round()
    [worker] = made.state.fleet
    for tokens in (1, 1, 40) * 500:
        worker.step_cost.add(tokens, PER_STEP + PER_TOKEN * tokens)
    return made


@pytest.mark.row("F13.04")
@pytest.mark.parametrize(
    ("seconds", "num_decode", "expected"),
    [
        (99, 4, 252),
        (0, 4, 235),
        (0, 22, 223),
        (0.031, 0, 256),
        (0.0311, 1, 20),
        (0.0311, 11, 10),
        (0.005, 1, 8),
        (9, 6, 250),
    ],
)
def test_tokens_follow_from_the_measured_times(
    seconds: float, num_decode: int, expected: int
) -> None:
    [worker] = world(0.0).state.fleet
    assert prefill_budget(worker, num_decode, seconds) == expected
    left = 256 - num_decode
    assert prefill_budget(worker, num_decode, seconds, least=100) == min(left, max(expected, 100))
    assert prefill_budget(worker, num_decode, seconds, least=300) == left


@pytest.mark.parametrize(("media", "largest"), [((), 20), ((IMAGE,), 60)])
def test_a_prompt_beside_a_stream_runs_in_chunks_of_the_bound_and_whole_spans(
    media: tuple[Media, ...], largest: int
) -> None:
    made = world(31.1)
    request = made.submit(list(range(100, 240)), Sampling(2, seed=2), media=media)
    made.finish()
    assert request.tokens == request.expected[0]
    chunks = [row[1] for plan in made.plans for slot, row in rows(plan).items() if slot == 1]
    assert largest <= max(chunks) < 1.5 * largest and sum(chunks) == 141


def test_behind_decode_steps_the_first_chunk_is_short() -> None:
    """Noise makes steps of three rows longer than those of four: no chunk is unbounded for that."""
    [worker] = world(0.0).state.fleet
    for tokens in (3, 4) * 500:
        worker.step_cost.add(tokens, 0.02 - 0.001 * tokens)
    per_token = 1 / worker.step_cost.rate
    assert prefill_budget(worker, 4, 0.25) == int(0.25 / per_token) - 4 < 60
    worker.step_cost.add(50, PER_STEP + PER_TOKEN * 50)
    assert prefill_budget(worker, 4, 0.25) > 180
