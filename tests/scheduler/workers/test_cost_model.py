"""The time of a step from the times of earlier ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_scheduler.workers.cost_model import LinearCostModel


def test_before_any_step_nothing_is_known() -> None:
    pace = LinearCostModel()
    assert not pace.measured and pace.seconds(100, 1) == 0.0


def test_a_line_is_found_again() -> None:
    pace = LinearCostModel()
    for tokens in (1, 64, 512, 2048, 8, 200):
        pace.add(tokens, 0.004 + 0.0001 * tokens)
    assert pace.line == pytest.approx((0.004, 0.0001), rel=1e-6)
    assert pace.seconds(1000, 2) == pytest.approx(0.108)


def test_of_steps_of_one_size_each_token_has_its_share() -> None:
    pace = LinearCostModel()
    for _ in range(9):
        pace.add(8, 0.016)
    assert pace.line == (0.0, pytest.approx(0.002))


def test_the_latest_steps_count_most() -> None:
    pace = LinearCostModel()
    for _ in range(20):
        for tokens in (1, 100):
            pace.add(tokens, 1.0)
    for _ in range(200):
        for tokens in (1, 100):
            pace.add(tokens, 0.01 * tokens)
    assert pace.line == pytest.approx((0.0, 0.01), abs=1e-3)


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 10)), min_size=1, max_size=50))
def test_no_step_is_ever_thought_to_take_less_than_no_time(
    steps: list[tuple[int, float]],
) -> None:
    pace = LinearCostModel()
    for tokens, seconds in steps:
        pace.add(tokens, seconds)
    base, slope = pace.line
    assert base >= -1e-9 and slope >= 0.0
