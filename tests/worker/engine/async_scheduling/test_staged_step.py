"""A step whose hidden states another stage computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from baton_worker.engine.async_scheduling.staged_step import StagedStep

ANY: Any = None


def test_hidden_states_of_a_discarded_step_are_taken() -> None:
    taken: list[int] = []

    def run() -> Tensor:
        taken.append(1)
        return torch.zeros(1, 4)

    step = StagedStep(ANY, run)
    step.discard()
    assert step.has_rows and taken == [1]


def test_a_step_without_rows_has_no_states_to_take() -> None:
    step = StagedStep(ANY, None)
    step.discard()
    assert not step.has_rows
