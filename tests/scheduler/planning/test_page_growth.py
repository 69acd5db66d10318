"""Pages come when they are needed, in the order of service."""

from __future__ import annotations

import msgspec
import pytest

from baton.protocol import Sampling
from baton.protocol.token_columns import unpack
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler.one_worker import rows, world
from tests.support.scheduler_world import World


@pytest.mark.row("F12.01")
@pytest.mark.parametrize("page_size", [1, 2, 5, 16])
def test_a_page_comes_when_a_position_crosses_into_it(page_size: int) -> None:
    here = world(worker_info(page_size=page_size, num_pages=64))
    here.submit(list(range(7)), Sampling(10))
    here.finish()
    for plan in here.plans:
        for start, count, _ in rows(plan).values():
            crossed = -(-(start + count) // page_size) - -(-start // page_size)
            assert len(unpack(plan.pages, "I")) == crossed


@pytest.mark.row("F13.05")
def test_a_preempted_sequence_goes_on_with_the_same_tokens() -> None:
    here = world(worker_info(num_pages=8, page_size=2, max_num_seqs=4))
    requests = [here.submit([n, n, n], Sampling(9, seed=n)) for n in range(4)]
    here.finish()
    assert here.state.counters.preemptions > 0
    for request in requests:
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)


@pytest.mark.row("F13.02", "F13.05")
def test_the_oldest_is_never_preempted() -> None:
    here = world(worker_info(num_pages=8, page_size=2, max_num_seqs=4))
    requests = [here.submit([n, n, n], Sampling(9, seed=n)) for n in range(4)]
    for _ in range(200):
        if here.state.idle:
            break
        oldest = next(r for r in requests if r.end is None)
        before = len(oldest.tokens)
        for _ in range(3):
            here.round()
        assert len(oldest.tokens) > before or oldest.end
    assert here.state.counters.preemptions > 0


@pytest.mark.row("F04.11", "F12.01")
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("windows", [(0, 7), (7,), (5, 0, 11)])
def test_a_prompt_gets_the_pages_of_a_window_chunk_by_chunk(
    windows: tuple[int, ...], depth: int
) -> None:
    """After every result each group holds what the next token sees, and nothing before that."""
    full = sum(window == 0 for window in windows)
    info = worker_info(
        num_pages=60 * full + 10 * (len(windows) - full), page_size=4, max_num_batched_tokens=16
    )
    here = world(msgspec.structs.replace(info, windows=windows), plans_in_flight=depth)
    request = here.submit([n % 50 for n in range(200)], Sampling(30, seed=3))
    worker = here.state.fleet.get("w")
    assert worker is not None and worker.max_model_len >= 231
    while not here.state.idle:
        here.round()
        for slot in worker.batch.occupied():
            length = int(worker.batch.num_confirmed[slot])
            for group, table in enumerate(worker.batch.tables(slot)):
                assert table.first <= worker.groups.first(group, length)
        here.tick(0)
        for slot in worker.batch.occupied():
            length = int(worker.batch.num_confirmed[slot])
            for group, table in enumerate(worker.batch.tables(slot)):
                if worker.batch.sent[slot]:
                    assert table.first == worker.groups.first(group, length)
    assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)
    assert here.state.counters.preemptions == 0


@pytest.mark.row("F12.01", "F13.05")
def test_the_longest_sequence_that_fits_comes_to_its_end_alone() -> None:
    """With everything that it needs and nothing more, it waits for its own steps in flight."""
    info = msgspec.structs.replace(
        worker_info(num_pages=21, page_size=2, max_num_batched_tokens=4), windows=(0, 5, 5)
    )
    here = World(SchedulerOptions(plans_in_flight=3), max_steps=8)
    here.join("w", info)
    worker = here.state.fleet.get("w")
    assert worker is not None
    others = [here.submit([9], Sampling(20, seed=n)) for n in range(3)]
    request = here.submit([1], Sampling(100))
    here.finish()
    assert len(request.tokens) + 1 == worker.max_model_len == 22
    for other in others:
        assert other.tokens == expected_tokens(other.prompt, other.sampling)[0]


@pytest.mark.row("F08.12", "F13.05")
def test_where_no_page_is_left_for_drafts_of_steps_in_flight_a_plan_has_one_step() -> None:
    info = worker_info(num_pages=12, page_size=2)
    here = World(SchedulerOptions(plans_in_flight=4), max_steps=8)
    here.join("w", msgspec.structs.replace(info, num_speculative_tokens=16))
    asked = [here.submit([n], Sampling(12, seed=n)) for n in range(3)]
    here.finish()
    for request in asked:
        assert request.tokens == expected_tokens(request.prompt, request.sampling)[0]
