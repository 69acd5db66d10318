"""A draft is drawn as the token in its place is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import NewSequence, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.draft_sampler import DraftSampler
from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.sampling import Sampler
from baton_worker.speculative.proposer import NO_DRAFT
from tests.support.worker.plans import batch, plan

PROMPT = [3, 4, 5]
ASKED = (
    Sampling(9, temperature=0.0, frequency_penalty=1.0),
    Sampling(9, seed=2, temperature=0.8, top_p=0.9, repetition_penalty=1.5),
    Sampling(9, seed=3, temperature=1.3, logit_bias={7: 3.0}, min_tokens=9, stop_ids=(8,)),
    Sampling(9, seed=4, temperature=1.0, bad_words=((6,), (7, 9))),
)


@pytest.mark.row("F08.01")
def test_logits_of_the_target_give_the_tokens_of_the_target() -> None:
    held = batch(vocab_size=10)
    new = tuple(NewSequence(slot, pack(PROMPT), 3, s) for slot, s in enumerate(ASKED))
    held.prepare(plan(new_sequences=new))
    drafts, slots = DraftSampler(held.sequences, held.sampling), np.arange(4)
    drafts.begin(slots.tolist())
    for depth in range(4):
        logits = torch.randn(4, 10) * 2
        rows = LogitsRows(slots, slots, np.full(4, 3 + depth), np.full(4, depth), np.full(4, -1))
        adjusted = logits.clone()
        held.sampling.adjustments(rows).apply(adjusted)
        expected = Sampler().sample(adjusted, held.sampling.parameters[slots], rows.index)
        # The drafter's logits are padded; a padded one is never drawn.
        wide = torch.nn.functional.pad(logits, (0, 3), value=99.0)
        assert drafts.sample(wide, slots).tolist() == expected.tolist()
        assert (held.sequences.tokens[:, 3 + depth] == expected).all()


@pytest.mark.row("F08.01")
def test_no_draft_ends_a_sequence_and_none_comes_of_broken_logits() -> None:
    held = batch(vocab_size=10)
    sampling = Sampling(9, temperature=0.0, stop_ids=(8,))
    held.prepare(
        plan(new_sequences=tuple(NewSequence(s, pack(PROMPT), 3, sampling) for s in range(4)))
    )
    drafts = DraftSampler(held.sequences, held.sampling)
    drafts.begin(range(4))
    logits = torch.zeros(4, 9)  # Token 9 is missing.
    logits[0, 8] = logits[1, 6] = 1.0
    logits[2, 3], logits[3] = torch.nan, -torch.inf
    assert drafts.sample(logits, np.arange(4)).tolist() == [NO_DRAFT, 6, NO_DRAFT, NO_DRAFT]
