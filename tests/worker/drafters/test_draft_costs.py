"""How much of a prompt a step catches up with."""

from __future__ import annotations

import pytest

from baton_worker.drafters.draft_costs import catch_up_tokens
from baton_worker.speculative.step_costs import StepCosts


@pytest.mark.row("F08.01")
def test_a_chunk_takes_about_as_long_as_the_passes_of_the_drafts() -> None:
    costs = StepCosts({1: 0.010, 8: 0.010, 64: 0.038})
    assert catch_up_tokens(costs, 1) == 16, "never less"
    assert catch_up_tokens(costs, 4) == 64
    assert catch_up_tokens(costs, 8) == 128
    assert catch_up_tokens(StepCosts({1: 0.001, 2: 0.001}), 2) == 1024
