"""What is wanted of a step, and a part of its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.layers.media_embeddings import MediaEmbeddings
from tests.support.worker.plans import batch, entering, plan


def inputs() -> StepInputs:
    new = (entering(0, [1, 2, 3], prompt_logprobs=2), entering(1, [4, 5]))
    return batch().prepare(
        plan(new_sequences=new, pages={0: [0], 1: [1]}, run=[(0, 0, 3, 1), (1, 0, 2, 1)])
    )


def test_prompt_tokens_whose_log_probabilities_are_wanted() -> None:
    [span] = inputs().prompt_spans
    assert (span.slot, span.start, span.first, span.num_logprobs) == (0, 1, 0, 2)
    assert span.tokens.tolist() == [2, 3]


def test_a_part_of_the_rows_has_their_tokens_and_needs_no_logits() -> None:
    part = inputs().take(np.array([False, True]))
    assert (part.tokens.tolist(), part.positions.tolist()) == ([4, 5], [0, 1])
    assert part.lengths.tolist() == [2] and part.rows.slots.tolist() == [1]
    assert len(part) == 1 and len(part.logits) == 0 and part.prompt_spans == ()


def test_positions_of_several_axes_and_embeddings_are_taken_by_token() -> None:
    whole = inputs()
    given = replace(
        whole,
        positions=np.stack([whole.positions, whole.positions + 10]),
        embeddings=MediaEmbeddings(torch.tensor([0, 2, 4]), torch.arange(6.0).view(3, 2)),
    )
    part = given.take(np.array([False, True]))
    assert part.positions.tolist() == [[0, 1], [10, 11]]
    assert part.embeddings is not None and part.embeddings.places.tolist() == [1]
    assert part.embeddings.values.tolist() == [[4.0, 5.0]]
