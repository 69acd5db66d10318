"""States wait slot by slot, and what does not follow them takes their place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from baton_worker.drafters.waiting_states import WaitingStates
from baton_worker.speculative.proposer import TargetStep

NOTHING: Any = SimpleNamespace()


def step(*rows: tuple[int, int, int]) -> TargetStep:
    """(slot, start, count) of rows whose tokens are their positions."""
    at = np.concatenate([np.arange(start, start + count) for _, start, count in rows])
    slots, starts, counts = np.array(rows, np.int64).T
    hidden = torch.from_numpy(at)[:, None].float()
    return TargetStep(slots, starts, counts, at + 1, at, hidden, NOTHING, NOTHING)


def test_tokens_of_several_steps_are_one() -> None:
    waiting = WaitingStates()
    for given in (step((3, 5, 1), (1, 0, 2)), step((3, 6, 1)), step((1, 9, 1), (2, 4, 1))):
        waiting.add(given)
        given.hidden.zero_()  # The next step of the target writes there.
    assert len(waiting) == 4 and waiting.slots == [3, 1, 2]
    waiting.drop(2)
    waiting.drop(7)
    taken = waiting.take([1, 3], NOTHING, NOTHING)
    assert taken.slots.tolist() == [1, 3] and taken.counts.tolist() == [1, 2]
    assert taken.starts.tolist() == [9, 5], "slot 1 went on from elsewhere"
    assert taken.next_tokens.tolist() == [10, 6, 7]
    assert taken.hidden.flatten().tolist() == taken.positions.tolist() == [9, 5, 6]
    assert not len(waiting)
