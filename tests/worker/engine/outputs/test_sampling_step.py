"""From hidden states to tokens; each row fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baton.protocol.token_columns import unpack
from baton_worker.engine.batch.draft_tokens import DraftOptions
from baton_worker.engine.batch.input_batch import InputBatch
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.engine.outputs.sampling_step import SamplingStep
from baton_worker.sampling import Sampler
from baton_worker.speculative.proposer import DraftRequest, DraftSampler, Proposer, Tokens
from tests.support.worker.identity_forward import IdentityForward
from tests.support.worker.plans import batch, commit, entering, plan

VOCAB = 50
RUN = [(0, 0, 3, 1), (1, 0, 2, 0), (2, 0, 2, 1)]
"""Slots 0 and 2 sample, and slot 1 has more prompt to come."""


def prepared(**asked: object) -> tuple[InputBatch, StepInputs]:
    """Greedy rows; slot 0 asks for more."""
    held, greedy = batch(), {"temperature": 0.0}
    new = (
        entering(0, [1, 2, 3], **greedy, **asked),
        entering(1, [4, 5, 6], **greedy),
        entering(2, [7, 8], **greedy),
    )
    return held, held.prepare(plan(new_sequences=new, pages={s: [s] for s in range(3)}, run=RUN))


def states() -> Tensor:
    """Of seven tokens; that at place n is for token 10 + n."""
    hidden = torch.zeros(7, VOCAB)
    hidden[torch.arange(7), torch.arange(10, 17)] = 5.0
    return hidden


def step(held: InputBatch, inputs: StepInputs, hidden: Tensor) -> StepOutputs:
    outputs = StepOutputs(inputs)
    SamplingStep(IdentityForward(), held.sampling, Sampler()).step(inputs, hidden, outputs)
    return outputs


def test_the_last_token_of_each_row_that_samples_has_a_say() -> None:
    made = step(*prepared(), states())
    assert (made.slots.tolist(), made.counts.tolist()) == ([0, 2], [1, 1])
    assert made.tokens.tolist() == [12, 16] and not made.failed and made.logprobs is None


def test_rows_that_are_not_finite_fail_whether_they_sample_or_not() -> None:
    hidden = states()
    hidden[2, 7] = torch.nan
    hidden[4, 7] = torch.inf
    made = step(*prepared(), hidden)
    assert made.slots.tolist() == [2] and made.tokens.tolist() == [16]
    assert made.broken == [1, 0]
    assert "hidden states" in made.failed[1] and "logits" in made.failed[0]


def test_a_row_whose_rules_leave_nothing_fails_and_its_pages_are_good() -> None:
    made = step(*prepared(allowed_ids=(7,), bad_words=((7,),), logprobs=1), states())
    assert made.slots.tolist() == [2] and "no token to sample" in made.failed[0]
    assert made.broken == [] and made.logprobs is None


def test_log_probabilities_are_of_the_raw_logits() -> None:
    made = step(*prepared(logprobs=1, logit_bias={30: 100.0}), states())
    assert made.tokens.tolist() == [30, 16] and made.logprobs is not None
    assert unpack(made.logprobs.rows, "I").tolist() == [0]
    assert np.frombuffer(made.logprobs.top_ids, "<i4").tolist() == [12]


def test_forced_tokens_come_before_the_sampled_one() -> None:
    held, inputs = prepared(logprobs=0)
    forced = np.array([2, 0, 0, 0])
    made = step(held, replace(inputs, forced=forced), states())
    assert made.counts.tolist() == [3, 1] and made.tokens.tolist() == [2, 3, 12, 16]
    assert made.logprobs is not None
    assert sorted(unpack(made.logprobs.rows, "I").tolist()) == [0, 1, 2]


class Saying(Proposer):
    """Drafts the same for everyone."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = np.array(tokens, np.int32)

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        return [self.tokens for _ in requests]


def drafted(*drafts: int, **asked: Any) -> tuple[InputBatch, StepInputs]:
    """Slot 0 has a token 9 behind its prompt of three, and these drafts behind that."""
    held = batch(drafting=DraftOptions(Saying(*drafts), 3))
    new = entering(0, [1, 2, 3], temperature=0.0, **asked)
    inputs = held.prepare(plan(new_sequences=(new,), pages={0: [0, 1, 2]}, run=[(0, 0, 3, 1)]))
    commit(held, inputs, {0: [9]})
    return held, held.prepare(plan(1, run=[(0, 3, 1, 1)]))


@pytest.mark.row("F08.12")
def test_drafts_stay_while_they_are_what_is_sampled() -> None:
    for drafts, tokens in (
        ((10, 11, 12), [10, 11, 12, 13]),
        ((10, 30, 12), [10, 11]),
        ((30, 11, 12), [10]),
        ((10, 11), [10, 11, 12]),
    ):
        held, inputs = drafted(*drafts, logprobs=1)
        made = step(held, inputs, states()[: len(inputs.tokens)])
        assert made.tokens.tolist() == tokens and made.counts.tolist() == [len(tokens)]
        assert (made.drafted.tolist(), made.accepted.tolist()) == ([len(drafts)], [len(tokens) - 1])
        assert made.logprobs is not None
        assert unpack(made.logprobs.rows, "I").tolist() == list(range(len(tokens)))
        assert np.frombuffer(made.logprobs.top_ids, "<i4").tolist() == tokens
        held.commit(made)
        assert held.sequences.log(0, int(held.sequences.lengths[0])).tolist() == [9, *tokens]
        assert held.sequences.computed[0] == 3 + len(tokens), "what was rejected runs again"


def test_a_draft_that_ends_the_sequence_is_none() -> None:
    _, inputs = drafted(10, 11, 12, stop_ids=(11,))
    assert inputs.tokens.tolist() == [9, 10]


def test_rules_behind_a_draft_matter_once_the_sequence_gets_there() -> None:
    """Nothing may follow token 10: the step that stands there fails, and not the one before."""
    held, inputs = drafted(10, 11, allowed_ids=(10,), bad_words=((10, 10),))
    made = step(held, inputs, states()[:3])
    assert made.tokens.tolist() == [10] and not made.failed
    held.commit(made)
    inputs = held.prepare(plan(2, run=[(0, 5, 1, 1)]))
    made = step(held, inputs, states()[: len(inputs.tokens)])
    assert "no token to sample" in made.failed[0] and not len(made.tokens)


def test_numbers_of_a_draft_that_are_not_finite_cost_only_the_draft() -> None:
    held, inputs = drafted(10, 11)
    hidden = states()[:3]
    hidden[2, 7] = torch.nan
    made = step(held, inputs, hidden)
    assert made.withdrawn == [0] and not made.failed and not made.broken
    made.wait(inputs.stalled)
    held.commit(made)
    assert made.counts.tolist() == [0] and held.sequences.computed[0] == 3
    assert held.prepare(plan(2, run=[(0, 3, 1, 1)])).tokens.tolist() == [9], "no more drafts"
