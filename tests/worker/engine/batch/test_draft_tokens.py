"""Drafts behind a log: how many there is room for, and of which rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from baton.protocol import NewSequence, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.draft_tokens import DraftOptions
from baton_worker.engine.batch.input_batch import InputBatch
from baton_worker.speculative.proposer import DraftRequest, DraftSampler, Proposer, Tokens
from tests.support.worker.plans import batch, commit, plan


class Counting(Proposer):
    """Drafts 40, 41, 42, ..."""

    def __init__(self) -> None:
        self.released = list[int]()

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        return [np.arange(40, 40 + 9, dtype=np.int32) for _ in requests]

    def release(self, slot: int) -> None:
        self.released.append(slot)


def decoding(
    pages: int = 4, max_tokens: int = 9, asked: int = -1, prediction: bytes = b"", **sizes: int
) -> tuple[InputBatch, Counting]:
    """Slots 0 and 1 have run prompts of three, and sampled a 9."""
    proposer = Counting()
    held = batch(drafting=DraftOptions(proposer, 4), **sizes)
    sampling = Sampling(max_tokens, num_speculative_tokens=asked)
    prompt = pack([1, 2, 3])
    new = (
        NewSequence(0, prompt, 3, sampling),
        NewSequence(1, prompt, 3, sampling, prediction=prediction),
    )
    own = {slot: list(range(slot * 4, slot * 4 + pages)) for slot in (0, 1)}
    inputs = held.prepare(plan(new_sequences=new, pages=own, run=[(0, 0, 3, 1), (1, 0, 3, 1)]))
    assert not len(np.flatnonzero(held.drafts.counts)), "a prompt has no drafts"
    commit(held, inputs, {0: [9], 1: [9]})
    return held, proposer


def test_drafts_end_where_there_is_no_room() -> None:
    for held, count in (
        (decoding()[0], 4),
        (decoding(asked=2)[0], 2),
        (decoding(asked=0)[0], 0),
        (decoding(asked=9)[0], 4),
        (decoding(pages=1)[0], 0),  # Of a page of four, four tokens are known.
        (decoding(pages=2)[0], 4),
        (decoding(max_tokens=4)[0], 2),  # Three are left, and the last is sampled.
        (decoding(max_tokens=2)[0], 0),
    ):
        inputs = held.prepare(plan(1, run=[(1, 3, 1, 1)]))
        assert inputs.tokens.tolist() == [9, 40, 41, 42, 43][: count + 1]
        drafts = inputs.logits.drafts
        drafted = None if drafts is None else drafts.tolist()
        assert drafted == ([*inputs.tokens.tolist()[1:], -1] if count else None)
        assert inputs.logits.lengths.tolist() == list(range(4, 5 + count))
        assert inputs.logits.index.tolist() == list(range(1, 2 + count))
        assert held.sequences.lengths[1] == 4, "they are not in the log"


def test_rows_share_what_a_step_has_room_for() -> None:
    held, _ = decoding(max_num_batched_tokens=8)
    inputs = held.prepare(plan(1, run=[(1, 3, 1, 1), (0, 3, 1, 1)]))
    assert (
        inputs.rows.counts.tolist() == [5, 3] and inputs.logits.slots.tolist() == [1] * 5 + [0] * 3
    )


def test_a_sequence_decodes_where_it_stands_and_is_released_at_the_proposer() -> None:
    held, proposer = decoding()
    inputs = held.prepare(plan(1, run=[(1, 3, 1, 1)]))
    commit(held, inputs, {1: [40, 41, 7]})
    inputs = held.prepare(plan(2, run=[(1, 4, 1, 1)]))
    assert inputs.rows.starts.tolist() == [6] and inputs.tokens.tolist()[:2] == [7, 40]
    commit(held, inputs, {1: [8]})
    held.prepare(plan(3, release=[1]))
    assert proposer.released == [1]


def test_what_a_client_expects_is_drafted_and_nothing_else() -> None:
    held, _ = decoding(prediction=pack([9, 20, 21, 22, 99, 23]))
    inputs = held.prepare(plan(1, run=[(1, 3, 1, 1), (0, 3, 1, 1)]))
    # Token 99 is none of this vocabulary of 50.
    assert inputs.tokens.tolist() == [9, 20, 21, 22, 9, 40, 41, 42, 43]
    commit(held, inputs, {1: [20, 7], 0: [8]})
    inputs = held.prepare(plan(2, run=[(1, 4, 1, 1)]))
    assert inputs.tokens.tolist() == [7], "it says something else"
    commit(held, inputs, {1: [21]})
    inputs = held.prepare(plan(3, run=[(1, 5, 1, 1)]))
    commit(held, inputs, {1: [22]})
    assert held.drafts._prediction(DraftRequest(1, held.sequences.tokens[1, :8], 9)).tolist() == [
        99,
        23,
    ]
