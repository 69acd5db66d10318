"""Where the time of a sequence goes: a life in the state is accounted for, moment by moment.

That the phases add up to the life is checked by `World`, for every sequence of every history.
"""

from __future__ import annotations

import pytest

from baton.protocol import PhaseTimes, Sampling
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.phase_times import Phase, PhaseTimer
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler.disaggregated_world import split
from tests.support.scheduler_world import Request, World

STEP = 0.5


def ended(request: Request) -> PhaseTimes:
    assert request.end is not None and request.times is not None
    return request.times


def seconds(times: PhaseTimes) -> tuple[float, ...]:
    return tuple(
        round(value, 6)
        for value in (
            *(times.queued, times.prefill, times.decode),
            *(times.preempted, times.worker_loss, times.handover),
        )
    )


def step(world: World, name: str = "w") -> None:
    """A step that lasts `STEP` seconds."""
    world.tick(0.0)
    world.run(name)
    world.hear(STEP)
    world.deliver(name)


def test_queue_prefill_and_decode_of_one_sequence() -> None:
    world = World(SchedulerOptions(plans_in_flight=1, max_num_batched_tokens=4))
    request = world.submit([1] * 8, Sampling(3))
    world.hear(2.0)
    world.join("w")
    for _ in range(4):
        step(world)
    times = ended(request)
    assert seconds(times) == (2.0, 2 * STEP, 2 * STEP, 0, 0, 0)
    assert (times.preemptions, times.losses, times.handovers, times.batch_neighbours) == (
        0,
        0,
        0,
        0.0,
    )


def test_the_account_names_the_worker_that_had_it_last() -> None:
    world = World(SchedulerOptions(plans_in_flight=1))
    world.join("first")
    request, refused = world.submit([1], Sampling(6)), world.submit([2], Sampling(6))
    world.round()
    world.abort("g", 2)
    world.lose_worker("first")
    world.join("second")
    world.finish()
    assert ended(request).worker == "second"
    assert refused.times is not None and refused.times.worker == "first"


def test_how_many_others_shared_its_steps() -> None:
    world = World(SchedulerOptions(plans_in_flight=1))
    world.join("w")
    requests = [world.submit([n], Sampling(4, seed=n)) for n in range(3)]
    world.finish()
    assert [ended(request).batch_neighbours for request in requests] == [2.0] * 3


def test_what_makes_room_waits_and_computes_again() -> None:
    world = World(SchedulerOptions(scheduling_policy="priority", plans_in_flight=1))
    world.join("w", worker_info(max_num_seqs=1))
    low = world.submit([1] * 4, Sampling(9, seed=1), priority=1)
    step(world)
    step(world)
    urgent = world.submit([2], Sampling(3, seed=2), priority=0)
    for _ in range(3):
        step(world)
    assert seconds(ended(urgent)) == (0, STEP, 2 * STEP, 0, 0, 0)
    step(world)  # What it had computed is computed again, and gives its next token.
    while low.end is None:
        step(world)
    times = ended(low)
    assert times.preemptions == world.state.counters.preemptions == 1
    assert seconds(times)[:4] == (0, STEP, 7 * STEP, 4 * STEP)


def test_a_lost_worker_costs_until_the_next_token() -> None:
    world = World(SchedulerOptions(plans_in_flight=1))
    world.join("w")
    request = world.submit([1] * 4, Sampling(4))
    step(world)
    world.lose_worker()
    world.hear(3.0)
    world.join("w")
    while request.end is None:
        step(world)
    times = ended(request)
    assert seconds(times) == (0, STEP, 2 * STEP, 0, 3.0 + STEP, 0)
    assert (times.losses, times.preemptions) == (1, 0)


def test_a_prefill_that_is_lost_is_a_prefill_again() -> None:
    world = World(SchedulerOptions(plans_in_flight=1))
    world.join("w")
    request = world.submit([1] * 4, Sampling(1))
    world.tick(0.0)
    world.hear(0.25)
    world.lose_worker()
    world.hear(3.0)
    world.join("w")
    step(world)
    assert seconds(ended(request)) == (0, 0.25 + STEP, 0, 0, 3.0, 0)


@pytest.mark.parametrize("max_tokens", [12])
def test_a_change_of_worker_costs_until_the_next_token(max_tokens: int) -> None:
    world = split()
    request = world.submit(list(range(20)), Sampling(max_tokens))
    world.finish()
    times = ended(request)
    assert times.handovers == world.state.counters.handoffs == 1
    assert 0 < times.handover < times.decode


def test_a_failure_and_an_abort_say_where_the_time_went() -> None:
    world = World(SchedulerOptions(plans_in_flight=1))
    world.join("w", fail_on=7)
    broken, left = world.submit([7] * 3, Sampling(4)), world.submit([1], Sampling(4))
    late = world.submit([2], Sampling(500), deadline_ms=5_000)
    step(world)
    world.abort("g", 2)
    assert (broken.end, left.end) == ("failed", "abort")
    assert seconds(ended(broken)) == (0, STEP, 0, 0, 0, 0)
    while late.end is None:
        step(world)
    assert sum(seconds(ended(late))) == 5.0


def test_a_refusal_has_no_times() -> None:
    world = World(SchedulerOptions(max_num_queued_reqs=0))
    refused = world.submit([1], Sampling(1))
    assert refused.end == "failed" and refused.times is None


def test_the_account_is_open_until_it_is_read() -> None:
    ledger = PhaseTimer(1.0)
    ledger.place(2.0)
    assert (ledger.phase, ledger.times(4.0).prefill) == (Phase.PREFILL, 2.0)
    ledger.token(5.0)
    ledger.add_steps(2, 6)
    assert ledger.times(6.0, steps=2, rows=2) == PhaseTimes(1.0, 3.0, 1.0, batch_neighbours=1.0)
