"""As many drafts as pay."""

from __future__ import annotations

import numpy as np
import pytest

from baton_worker.speculative.draft_lengths import Acceptance, draft_lengths
from baton_worker.speculative.step_costs import StepCosts

FREE = StepCosts({1: 1.0, 64: 1.0})
DEAR = StepCosts({1: 1.0, 2: 2.0})
"""A token costs as much as any other."""
BENT = StepCosts({1: 1.0, 5: 1.0, 6: 3.0})
"""Five tokens cost as much as one."""


def lengths(rates: list[float], most: list[int], tokens: int, costs: StepCosts) -> list[int]:
    found: list[int] = draft_lengths(np.array(rates), np.array(most), tokens, costs).tolist()
    return found


@pytest.mark.row("F08.12")
def test_drafts_are_made_as_long_as_they_pay() -> None:
    assert lengths([0.5, 0.9], [3, 2], 2, FREE) == [3, 2]
    assert lengths([0.9, 0.9], [3, 3], 2, DEAR) == [0, 0]
    # Room for three more tokens: the row that is easy to guess has them.
    assert lengths([0.2, 0.9], [4, 4], 2, BENT) == [0, 3]
    assert lengths([0.9, 0.9], [4, 4], 2, BENT) == [2, 1]
    # Beside a prompt that has a step to itself a draft delays more than it brings.
    assert lengths([0.9], [4], 512, StepCosts({1: 1.0, 2: 1.1})) == [0]
    assert lengths([0.01], [4], 1, StepCosts({1: 1.0, 2: 1.05})) == [0]
    assert lengths([], [], 0, FREE) == [] and lengths([0.5], [0], 1, FREE) == [0]


@pytest.mark.row("F08.01")
def test_drafting_takes_time_too() -> None:
    """A drafter runs once for all rows of a depth."""

    def found(rates: list[float], drafting: StepCosts) -> list[int]:
        most = np.full(len(rates), 4)
        return draft_lengths(np.array(rates), most, len(rates), FREE, drafting).tolist()

    fast, slow = (StepCosts({1: seconds, 2: seconds}) for seconds in (0.1, 0.95))
    assert found([0.9], fast) == [4] and found([0.9], slow) == [0]
    assert found([0.9] * 8, StepCosts({1: 0.3, 2: 0.3})) == [4] * 8
    assert found([0.3], StepCosts({1: 0.3, 2: 0.3})) == [0], "alone it does not pay"
    assert found([], fast) == []


def test_acceptance_is_that_of_the_slot_and_is_forgotten() -> None:
    acceptance, slots = Acceptance(3), np.array([0, 1])
    for _ in range(20):
        acceptance.observe(slots, np.array([4, 4]), np.array([4, 0]))
    good, bad = acceptance.rates(slots)
    other = acceptance.rates(np.array([2]))[0]
    assert good > 0.95 and bad < 0.2 and 0.55 < other < 0.8, "it is believed to be like all"
    for _ in range(200):
        acceptance.rest(slots[1:])
    assert acceptance.rates(slots)[1] > 0.45, "it is tried again"
    acceptance.enter(0)
    assert acceptance.rates(slots)[0] < other


def test_texts_that_are_hard_to_guess_are_tried_again_after_a_while() -> None:
    acceptance, slots = Acceptance(1), np.array([0])
    for _ in range(300):
        acceptance.observe(slots, np.array([3]), np.array([0]))
    acceptance.enter(0)
    assert acceptance.rates(slots)[0] < 0.1
    for _ in range(2000):
        acceptance.rest(slots)
    assert acceptance.rates(slots)[0] > 0.4


def test_a_depth_of_a_tree_costs_all_its_nodes() -> None:
    """A step of twice the tokens takes twice as long: a chain that is always right pays nothing, a
    tree less; where tokens are free all depths are drafted."""
    most, rates, widths = np.array([3]), np.array([0.99]), np.array([3, 2, 1])
    dear = StepCosts({1: 1.0, 2: 1.4, 4: 2.2, 8: 4.0})
    free = StepCosts({1: 1.0, 8: 1.0})
    assert draft_lengths(rates, most, 1, free, None, widths).tolist() == [3]
    assert draft_lengths(rates, most, 1, dear).tolist() == [3]
    assert draft_lengths(np.array([0.5]), most, 1, dear, None, widths).tolist() == [0]
