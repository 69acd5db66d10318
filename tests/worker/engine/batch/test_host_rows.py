"""Which steps have to wait for the one before them."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from baton.protocol import Blob, Grammar, Media, NewSequence, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.host_rows import _reason, _unsteady
from tests.support.worker.plans import batch, entering, plan

NONE = np.zeros(0, np.int64)


def test_what_a_sequence_needs_the_host_for() -> None:
    new = NewSequence(1, pack([1, 2, 3]), 2, Sampling(9, seed=3, top_k=4, top_p=0.5))
    assert _reason(new) == ("", 0) and not _unsteady(new, False)
    asked = {
        "grammar": Sampling(9, grammar=Grammar("regex", "a")),
        "penalties": Sampling(9, presence_penalty=0.5),
        "adjusted": Sampling(9, bad_words=((3,),)),
        "typical_p": Sampling(9, typical_p=0.5),
        "log-probabilities": Sampling(9, logprobs=0),
    }
    for said, sampling in asked.items():
        reason, until = _reason(replace_sampling(new, sampling))
        assert said in reason and until > 10**9
    prompt = replace_sampling(new, Sampling(9, prompt_logprobs=0))
    assert _reason(prompt) == ("its prompt log-probabilities are read", 2)
    assert _unsteady(new, True) and not _unsteady(
        replace_sampling(new, Sampling(9, num_speculative_tokens=0)), True
    )


def test_media_may_go_along_with_all_tokens() -> None:
    heard = Media(b"d" * 32, 0, 9, Blob("float32", (9,), bytes(36)))
    for item, until in (
        (heard, 2),
        (structs.replace(heard, alongside=True), np.iinfo(np.int64).max),
    ):
        assert _reason(NewSequence(1, pack([1, 2]), 2, Sampling(7), media=(item,)))[1] == until


def replace_sampling(new: NewSequence, sampling: Sampling) -> NewSequence:
    return NewSequence(new.slot, new.tokens, new.num_prompt, sampling)


def test_steps_of_a_batch() -> None:
    held = batch()
    first = plan(
        0,
        new_sequences=(entering(0, [1, 2]), entering(1, [1], min_tokens=1, stop_ids=(7,))),
        pages={0: [0], 1: [1]},
        run=[(0, 0, 2, 1), (1, 0, 1, 1)],
    )
    reason = held.host_rows.reason
    assert "min_tokens" in reason(first, 0, NONE, False)
    inputs = held.prepare(first)
    held.expect(inputs.rows)
    decode = [(0, 2, 1, 1), (1, 1, 1, 1)]
    assert reason(plan(1, run=decode), 0, np.array([0, 1]), False) == ""
    assert reason(plan(1, run=decode[1:], release=[0]), 0, np.array([1]), False) == ""
    assert "leaves" in reason(plan(1, run=decode[1:], release=[0]), 0, np.array([0, 1]), False)
    swap = plan(1, run=decode, swap_out=pack([0, 1], "I"))
    assert "swapped" in reason(swap, 0, NONE, False)
    assert reason(swap, 1, NONE, False) == "", "pages move before the first step of a plan"
    late = (entering(2, [1], repetition_penalty=1.2),)
    assert "penalties" in reason(plan(1, run=decode, new_sequences=late), 0, NONE, False)
    assert reason(replace_rows(99), 0, NONE, False) == "", "it is refused when it is applied"


def replace_rows(slot: int) -> object:
    return plan(1, run=[(slot, 0, 1, 1)])


def test_a_prompt_may_need_it_and_its_answer_not() -> None:
    held = batch()
    new = (entering(0, [1, 2, 3], prompt_logprobs=0),)
    first = plan(0, new_sequences=new, pages={0: [0]}, run=[(0, 0, 2, 0)])
    assert held.host_rows.reason(first, 0, NONE, False)
    inputs = held.prepare(first)
    held.expect(inputs.rows)
    assert held.host_rows.reason(plan(1, run=[(0, 2, 1, 1)]), 0, NONE, False)
    inputs = held.prepare(plan(1, run=[(0, 2, 1, 1)]))
    held.expect(inputs.rows)
    assert held.host_rows.reason(plan(2, run=[(0, 3, 1, 1)]), 0, NONE, False) == ""


def test_steps_of_a_pipeline_overlap_unless_one_reads_what_another_changes() -> None:
    held = batch()
    first = plan(
        0,
        new_sequences=(entering(0, [1, 2, 3, 4]), entering(1, [1])),
        pages={0: [0], 1: [1]},
        run=[(0, 0, 2, 0), (1, 0, 1, 1)],
    )
    waits = held.host_rows.waits
    assert waits(first, 0, [], False) == ""
    inputs = held.prepare(first)
    held.advance(inputs)
    unread = [inputs.rows]
    chunk = [(0, 2, 2, 1)]
    assert waits(plan(1, run=chunk), 0, unread, False) == "", "a prompt goes on"
    assert "not sampled" in waits(plan(1, run=[(1, 1, 1, 1)]), 0, unread, False)
    assert "leaves" in waits(plan(1, run=chunk, release=[1]), 0, unread, False)
    swap = plan(1, run=chunk, swap_out=pack([0, 1], "I"))
    assert "swapped" in waits(swap, 0, unread, False) and waits(swap, 1, unread, False) == ""
    grammar = (entering(2, [1], grammar=Grammar("regex", "a")),)
    alone = "grammar change what a step behind it reads"
    assert alone in waits(plan(1, run=chunk, new_sequences=grammar), 0, unread, False)
    plain = plan(1, run=chunk, new_sequences=(entering(2, [1]),))
    assert waits(plain, 0, unread, False) == "" and alone in waits(plain, 0, unread, True)
