"""Log-probabilities of tokens that were not sampled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from baton.protocol.token_columns import unpack
from baton_worker.engine.outputs import logprob_step
from baton_worker.engine.outputs.logprob_step import LogprobStep
from tests.support.worker.identity_forward import IdentityForward
from tests.support.worker.plans import batch, entering, plan

VOCAB = 50


def hidden(tokens: int) -> torch.Tensor:
    return torch.randn(tokens, VOCAB, generator=torch.Generator().manual_seed(1))


def values(data: bytes) -> list[float]:
    found: list[float] = np.frombuffer(data, "<f4").tolist()
    return found


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_each_prompt_token_is_described_by_the_state_before_it(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few logits may exist at one time."""
    monkeypatch.setattr(logprob_step, "_PROMPT_LOGITS", at_once * VOCAB)
    new = (entering(1, [9, 8]), entering(0, [1, 2, 3, 4], prompt_logprobs=2))
    inputs = batch().prepare(
        plan(new_sequences=new, pages={1: [1], 0: [0]}, run=[(1, 0, 2, 1), (0, 0, 4, 1)])
    )
    states = hidden(6)
    [part] = LogprobStep(IdentityForward(), VOCAB).prompts(inputs, states)
    assert (part.slot, part.start) == (0, 1)
    assert unpack(part.columns.rows, "I").tolist() == [0, 1, 2]
    expected = states.log_softmax(1)[[2, 3, 4], [2, 3, 4]].tolist()
    assert values(part.columns.chosen) == pytest.approx(expected, abs=1e-6)
    assert part.columns.counts == bytes((2, 2, 2))


def test_forced_tokens_are_numbered_before_the_one_that_is_sampled() -> None:
    """Of two rows that were forced to two tokens each, one asks for log-probabilities."""
    new = (entering(0, [1, 2, 3]), entering(1, [4, 5, 6, 7]))
    inputs = batch().prepare(
        plan(new_sequences=new, pages={0: [0], 1: [1]}, run=[(0, 0, 3, 1), (1, 0, 4, 1)])
    )
    forced = np.array([2, 2, 0, 0])
    given: Any = (replace(inputs, forced=forced), inputs.logits)
    step, states = LogprobStep(IdentityForward(), VOCAB), hidden(7)
    [part] = step.forced(*given, states, np.array([-1, 1]))
    # Tokens 0 to 2 are of the first row, 3 and 4 are forced and 5 is sampled in the second.
    assert unpack(part.rows, "I").tolist() == [3, 4]
    expected = states.log_softmax(1)[[4, 5], [6, 7]].tolist()
    assert values(part.chosen) == pytest.approx(expected, abs=1e-6)
    assert step.forced(inputs, inputs.logits, states, np.array([1, 1])) == []
