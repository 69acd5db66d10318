"""Plans: rows, token counts and pages of each step."""

from __future__ import annotations

import msgspec
import pytest

from baton.protocol import Sampling
from baton.protocol.token_columns import unpack
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler.one_worker import decoding, rows, several, world


@pytest.mark.row("F13.04")
@pytest.mark.parametrize("budget", [1, 3, 4, 5, 8, 64])
def test_a_prompt_in_chunks_gives_the_tokens_of_a_whole_one(budget: int) -> None:
    here = world(worker_info(max_num_batched_tokens=budget))
    request = here.submit(list(range(21)), Sampling(6, seed=3))
    here.finish()
    assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)
    prefill = [r[0] for p in here.plans if (r := rows(p)) and r[0][0] < 21]
    assert [start for start, _, _ in prefill] == list(range(0, 21, budget))
    assert [samples for _, _, samples in prefill] == [0] * (len(prefill) - 1) + [1]


@pytest.mark.row("F13.04")
def test_decode_rows_come_first_and_chunks_take_what_is_left_of_the_budget() -> None:
    here = world(worker_info(max_num_batched_tokens=8))
    here.submit([1, 2], Sampling(20))
    here.round()
    here.submit(list(range(20)), Sampling(2))
    here.tick()
    here.round()
    assert rows(here.plans[-1]) == {0: (3, 1, 1), 1: (0, 7, 0)}


@pytest.mark.row("F13.01")
def test_rows_join_and_leave_between_two_steps() -> None:
    here = world(worker_info())
    here.submit([1], Sampling(3))
    here.round()
    here.submit([2], Sampling(6))
    running = []
    for _ in range(8):
        here.round()
        running.append(here.state.num_running)
    assert running[0] == 2 and 1 in running and running[-1] == 0


@pytest.mark.row("F13.01")
def test_every_decode_row_runs_in_every_step_though_plans_are_one_ahead() -> None:
    here = world(worker_info())
    for number in range(6):
        here.submit([number], Sampling(12))
    here.round()
    for _ in range(8):
        here.round()
        assert sorted(rows(here.plans[-1])) == list(range(6))


def test_a_plan_goes_out_before_the_result_of_the_one_before() -> None:
    here = world(worker_info())
    here.submit([1, 2, 3], Sampling(9))
    here.tick()
    assert [rows(plan) for plan in here.plans] == [{0: (0, 3, 1)}, {0: (3, 1, 1)}]


def test_nothing_is_planned_beyond_the_last_token() -> None:
    here = world(worker_info(), plans_in_flight=4)
    here.submit([1, 2, 3], Sampling(2))
    here.tick()
    assert [rows(plan) for plan in here.plans] == [{0: (0, 3, 1)}, {0: (3, 1, 1)}]


@pytest.mark.row("F13.02")
def test_nobody_overtakes_the_head_of_the_queue() -> None:
    here = world(worker_info(num_pages=8, page_size=2, max_num_seqs=8))
    for number, length in enumerate((4, 12, 1, 1, 1)):
        here.submit([100 * number + i for i in range(length)], Sampling(4))
    order: list[int] = []
    while not here.state.idle:
        here.round()
        for plan in here.plans:
            order += [len(new.tokens) // 4 for new in plan.new_sequences]
        here.plans.clear()
    assert order[:3] == [4, 12, 1]


# Plans of several steps.


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("max_steps", [2, 3, 8, 64])
def test_plans_of_several_steps_give_the_same_tokens(max_steps: int, depth: int) -> None:
    here = several(max_steps, plans_in_flight=depth)
    requests = [here.submit([n], Sampling(5 + 9 * n, seed=n)) for n in range(4)]
    here.finish()
    for request in requests:
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)
    assert max(plan.num_steps for plan in here.plans) == min(max_steps, 31)
    assert len(here.plans) < 40 and here.cuts == 0


def test_a_row_has_turns_up_to_its_last_token() -> None:
    here = several()
    decoding(here, 5, 30, 9)
    long = next(plan for plan in here.plans if plan.num_steps > 1)
    assert long.num_steps == 8
    turns = dict(zip(unpack(long.rows, "I"), unpack(long.steps_per_row, "I"), strict=True))
    starts = dict(zip(unpack(long.rows, "I"), unpack(long.num_computed, "I"), strict=True))
    # The keys of the last token are not needed: 2 + length - 1 positions run.
    assert turns == {slot: min(8, 2 + n - 1 - starts[slot]) for slot, n in enumerate((5, 30, 9))}
    here.finish()


def test_an_arrival_runs_after_the_step_that_runs_and_the_next() -> None:
    here = several(64)
    decoding(here, 200)
    here.run()
    current = here.peers["w"].engine.last_step
    late = here.submit([7, 7, 7], Sampling(4, seed=7))
    here.tick()
    assert here.cuts == 1
    here.run(during=1)  # It hears of the cut while this step runs.
    here.deliver()
    here.deliver()
    here.tick()
    entering = [plan for plan in here.plans if plan.new_sequences][-1]
    assert current is not None and entering.step == current + 3
    assert here.run() and here.peers["w"].plans, "the next step is there already"
    here.finish()
    assert (late.tokens, late.end) == expected_tokens(late.prompt, late.sampling)


@pytest.mark.row("F13.08")
def test_a_worker_always_has_the_next_step_when_it_ends_one() -> None:
    here = several(5)
    decoding(here, 60, 70)
    for turn in range(40):
        if turn % 9 == 4:
            here.submit([turn], Sampling(3, seed=turn))
        assert here.run(during=9) and here.peers["w"].plans
        here.deliver()
        here.tick()


def test_nobody_plans_ahead_while_somebody_waits() -> None:
    here = several(8, worker_info(max_num_seqs=2))
    decoding(here, 30, 30)
    waits = here.submit([5], Sampling(2))
    for _ in range(4):
        here.round()
    before = len(here.plans)
    for _ in range(6):
        here.round()
    assert {plan.num_steps for plan in here.plans[before:]} == {1} and not waits.tokens
    here.finish()


@pytest.mark.parametrize("late", [0, 1, 2])
def test_an_abort_ends_a_plan_of_several_steps(late: int) -> None:
    here = several(64)
    requests = decoding(here, 200, 200)
    here.abort("g", 1)
    here.tick()
    for turn in range(7):
        here.run(late=late if turn < 2 else 0)
        here.deliver()
        here.tick()
    assert here.cuts == 1 and list(here.peers["w"].engine.slots) == [1]
    here.finish()
    assert [request.end for request in requests] == ["abort", "length"]


def test_pages_for_all_steps_come_with_the_plan_and_only_free_ones() -> None:
    here = several(64, worker_info(num_pages=8, page_size=4, max_num_seqs=2))
    requests = decoding(here, 14, 14)
    worker = here.state.fleet.get("w")
    assert worker is not None and here.state.counters.preemptions == 0
    assert worker.pool.num_held <= 8
    here.finish()
    assert all(request.end == "length" for request in requests)


@pytest.mark.parametrize("until", [1, 10**6])
def test_an_end_that_cannot_be_meant_is_a_bad_result(until: int) -> None:
    here = several(64)
    [request] = decoding(here, 40)
    here.run()
    peer = here.peers["w"]
    peer.results.append(msgspec.structs.replace(peer.results.pop(), truncated_at=until))
    here.deliver()
    assert here.state.counters.stale_results == 1 and here.state.num_running == 0
    here.lose_worker()
    here.join("w")
    here.finish()
    assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)
