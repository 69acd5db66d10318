"""What steps cost: between what was measured, beyond it, and later."""

from __future__ import annotations

import numpy as np
import pytest

from baton_worker.speculative.step_costs import StepCosts


def at(costs: StepCosts, *tokens: int) -> list[float]:
    found: list[float] = costs.seconds(np.array(tokens)).tolist()
    return found


def test_costs_are_linear_between_and_beyond_and_never_fall() -> None:
    costs = StepCosts({1: 1.0, 4: 1.3, 2: 1.5, 8: 2.0})
    assert at(costs, 1, 2, 3, 6, 16) == pytest.approx([1.0, 1.3, 1.3, 1.65, 3.4])
    assert "8: 2000.0 ms" in str(costs)


def test_a_slower_machine_is_noticed_and_so_is_a_slower_size() -> None:
    costs = StepCosts({1: 1.0, 2: 1.0, 8: 1.0})
    for _ in range(200):
        costs.observe(1, 2.0)
        costs.observe(8, 3.0)
    one, two, eight = at(costs, 1, 2, 8)
    assert one == pytest.approx(2.0, rel=0.1) and eight == pytest.approx(3.0, rel=0.1)
    assert one <= two <= eight
