"""Ranks agree before each step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from baton.errors import SettingsError
from baton_worker.distributed.communicator import SingleRank
from baton_worker.distributed.step_sync import StepSync
from tests.fakes.threaded_ranks import together

CPU = torch.device("cpu")
EXCHANGE = "allgather_reducescatter"


@pytest.mark.parametrize(("tokens", "step"), [([7, 0, 1], True), ([0, 0, 0], False)])
def test_there_is_a_step_if_anybody_has_tokens(tokens: list[int], step: bool) -> None:
    def part(ranks: Any) -> bool:
        return StepSync(ranks, EXCHANGE, CPU).agree(tokens[ranks.rank])

    assert together(3, part) == [step] * 3


def test_rows_are_exchanged_as_was_agreed() -> None:
    """First by two ranks with tokens, then with one that has none."""

    def part(ranks: Any) -> list[Tensor]:
        lockstep, found = StepSync(ranks, EXCHANGE, CPU), list[Tensor]()
        for counts in ([1, 2], [0, 3]):
            lockstep.agree(counts[ranks.rank])
            mine = torch.full((counts[ranks.rank], 2), float(ranks.rank + 1))
            found += [whole := lockstep.begin_gather(mine)(), lockstep.scatter(whole)]
        return found

    first, second = together(2, part)
    for found in (first, second):
        assert found[0][:, 0].tolist() == [1, 2, 2] and found[2][:, 0].tolist() == [2, 2, 2]
    assert first[1].tolist() == [[2, 2]] and first[3].shape == (0, 2)
    assert second[1].tolist() == [[4, 4]] * 2 and second[3].tolist() == [[4, 4]] * 3


def test_what_comes_before_steps_begins_for_all_ranks_at_once() -> None:
    """Before the same steps, once the last rank is warm; never where nobody has tokens."""
    steps = [([1, 1], [False, False]), ([1, 0], [True, False]), ([0, 2], [True, True])]
    steps += [([0, 0], [True, True]), ([3, 0], [True, True])]

    def part(ranks: Any) -> list[int]:
        lockstep, found = StepSync(ranks, EXCHANGE, CPU), list[int]()
        for number, (tokens, warm) in enumerate(steps):
            lockstep.before_step = lambda number=number: found.append(number)
            lockstep.warm = warm[ranks.rank]
            lockstep.agree(tokens[ranks.rank])
        return found

    assert together(2, part) == [[2, 4]] * 2


@pytest.mark.parametrize("over", [[True, False], [True, True]])
def test_all_end_when_all_are_to_end(over: list[bool]) -> None:
    def part(ranks: Any) -> bool:
        lockstep = StepSync(ranks, EXCHANGE, CPU)
        assert not lockstep.all_over and not lockstep.agree(0, over[ranks.rank])
        return lockstep.all_over

    assert together(2, part) == [all(over)] * 2


def test_an_exchange_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(SettingsError, match="--all2all-backend pplx"):
        StepSync(SingleRank(), "pplx", CPU)
