"""Steps of plans in their order, and plans that are cut."""

from __future__ import annotations

from baton.protocol import Plan, Result
from baton_worker.engine.plan_queue import PlanQueue


def plan(step: int, steps: int = 1) -> Plan:
    return Plan(1, step, b"", b"", b"", b"", num_steps=steps)


def steps(plans: PlanQueue) -> list[int]:
    """Runs everything."""
    ran = []
    while plans:
        first, turn = plans.first
        ran.append(first.step + turn)
        plans.advance()
    return ran


def told(plans: PlanQueue) -> int:
    return plans.with_truncation(Result(1, 1, b"", b"", b"", b"")).truncated_at


def waiting(*items: Plan) -> PlanQueue:
    plans = PlanQueue()
    for item in items:
        plans.add(item)
    return plans


def test_every_step_of_every_plan_runs_in_order() -> None:
    assert steps(waiting(plan(3, 2), plan(5), plan(6, 3))) == [3, 4, 5, 6, 7, 8]


def test_a_cut_ends_a_plan_with_the_next_step_that_begins() -> None:
    plans = waiting(plan(3, 9))
    plans.advance()
    plans.truncate(3)
    assert told(plans) == 4 and told(plans) == 0, "it is said once"
    plans.add(plan(5))
    assert steps(plans) == [4, 5]


def test_the_first_step_of_a_plan_that_is_cut_runs_in_any_case() -> None:
    plans = waiting(plan(3, 2), plan(5, 4))
    plans.truncate(5)
    assert told(plans) == 5 and steps(plans) == [3, 4, 5]


def test_a_cut_that_comes_late_changes_nothing() -> None:
    plans = waiting(plan(3, 3))
    plans.advance()
    plans.advance()
    plans.truncate(3)
    plans.truncate(2)
    assert told(plans) == 0 and steps(plans) == [5]


def test_what_was_cleared_is_not_told_of() -> None:
    plans = waiting(plan(3, 3), plan(6, 2))
    plans.advance()
    plans.truncate(6)
    plans.clear()
    assert told(plans) == 0 and len(plans) == 0
    plans.add(plan(1, 2))
    assert steps(plans) == [1, 2]


def test_it_counts_what_is_over() -> None:
    plans = waiting(plan(3, 2), plan(5), plan(6))
    plans.advance()
    assert plans.ended == 0
    plans.advance()
    assert plans.ended == 1
    plans.clear()
    assert plans.ended == 3
