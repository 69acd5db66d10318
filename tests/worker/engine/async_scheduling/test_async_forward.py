"""Tokens that only the device knows take their places among those of prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from baton_worker.engine.async_scheduling.async_forward import AsyncForward
from baton_worker.engine.batch.sequence_states import UNKNOWN
from tests.fakes.host_link import HostLink
from tests.support.worker.plans import batch, entering, plan


class _Echo:
    """A model whose hidden states are the tokens that it runs."""

    def forward(self, tokens: torch.Tensor, *others: Any, **more: Any) -> torch.Tensor:
        return tokens.clone()


def test_sampled_tokens_are_the_inputs_of_decode_rows() -> None:
    none: Any = None
    echo: Any = _Echo()
    forward = AsyncForward(echo, none, torch.device("cpu"), HostLink(), 4)
    held = batch()
    first = (entering(2, [5, 6]), entering(0, [7]))
    step = {"new_sequences": first, "pages": {2: [1], 0: [2]}, "run": [(2, 0, 2, 1), (0, 0, 1, 1)]}
    inputs = held.prepare(plan(0, **step))
    assert forward(inputs).tolist() == [5, 6, 7]
    forward.keep(torch.tensor([2, 0]), torch.tensor([41, 42]))
    held.expect(inputs.rows)
    late = entering(3, [8, 9])
    rows = [(0, 1, 1, 1), (3, 0, 2, 1), (2, 2, 1, 1)]
    inputs = held.prepare(plan(1, new_sequences=(late,), pages={3: [3]}, run=rows))
    assert inputs.tokens.tolist() == [UNKNOWN, 8, 9, UNKNOWN]
    assert forward(inputs).tolist() == [42, 8, 9, 41]
    forward.keep(torch.tensor([0, 3, 2]), torch.tensor([1, 2, 3]))
    held.expect(inputs.rows)
    inputs = held.prepare(plan(2, run=[(0, 2, 1, 1), (2, 3, 1, 1)]))
    assert (inputs.tokens == UNKNOWN).all() and forward(inputs).tolist() == [1, 3]
    assert np.array_equal(inputs.positions, [2, 3])
