"""Which tokens are aligned, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from baton.protocol import NewSequence, Plan, Pooling, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.input_batch import InputBatch
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.engine.multimodal.alignment_step import AlignmentStep, attention_weights
from baton_worker.layers.attention.cross_states import CrossInputs
from baton_worker.layers.media_embeddings import MediaEmbeddings
from tests.support.worker.plans import batch, entering, plan

STATES, HEADS = 6, 2


def aligned(slot: int, length: int, first: int) -> NewSequence:
    asked = Pooling(reach="every", aligned_from=first, num_states=STATES - 1)
    return NewSequence(slot, pack([3] * length), length, Sampling(0), pooling=asked)


def seeing(held: InputBatch, asked: Plan) -> StepInputs:
    """Inputs of a step whose tokens all see the same states."""
    inputs = held.prepare(asked)
    count = len(inputs.tokens)
    cross = CrossInputs(
        torch.arange(count),
        torch.zeros(count, dtype=torch.int64),
        torch.tensor([[1, 0]], dtype=torch.int32),
        torch.tensor([STATES]),
        (),
        2,
    )
    cross = cross._replace(weights=attention_weights(inputs, cross))
    nothing = torch.zeros(0, dtype=torch.int64), torch.zeros((0, 4))
    return replace(inputs, embeddings=MediaEmbeddings(*nothing, cross=cross))


def stepped(
    some: AlignmentStep, held: InputBatch, asked: Plan, queries: torch.Tensor, pages: torch.Tensor
) -> StepOutputs:
    """Run one layer with these queries, and the step."""
    inputs = seeing(held, asked)
    outputs = StepOutputs(inputs)
    some.enter(asked)
    assert inputs.embeddings is not None and inputs.embeddings.cross is not None
    if (weights := inputs.embeddings.cross.weights) is not None:
        weights.add(queries, pages, (0, 1), 1.0)
    some.step(inputs, outputs)
    held.commit(outputs)
    return outputs


def pages_of(keys: torch.Tensor) -> torch.Tensor:
    """[2, 4, 2, 2, dim]: states 0 to 3 in page 1, the others in page 0."""
    pages = torch.zeros(2, 4, 2, HEADS, keys.shape[1])
    pages[1, :, 0], pages[0, :2, 0] = keys[:4, None], keys[4:, None]
    return pages


def places(vectors: dict[int, np.ndarray], slot: int) -> Sequence[float]:
    return list(vectors[slot].tolist())


def test_tokens_are_aligned_once_all_have_run() -> None:
    """In two chunks, from the first that is asked for on; beside a row that makes text."""
    keys = 9 * torch.eye(STATES)
    look = torch.zeros(9, HEADS, STATES)
    for row, state in ((1, 0), (2, 1), (3, 4)):
        look[row, :, state] = 1.0
    some, held = AlignmentStep(1), batch()
    first = plan(
        new_sequences=(aligned(0, 5, 2), entering(1, [1])),
        pages={0: [0, 1], 1: [2]},
        run=[(0, 0, 4, 0), (1, 0, 1, 0)],
    )
    chunk = torch.cat((look[:1], look[:3], look[:1]))
    assert not stepped(some, held, first, chunk, pages_of(keys)).vectors
    last = stepped(some, held, plan(1, run=[(0, 4, 1, 0)]), look[3:4], pages_of(keys))
    assert places(last.vectors, 0) == [0, 1, 4] and not last.failed


def test_weights_that_are_not_finite_fail_their_sequence() -> None:
    some, held = AlignmentStep(1), batch()
    asked = plan(new_sequences=(aligned(0, 3, 1),), pages={0: [0]}, run=[(0, 0, 3, 0)])
    broken = torch.full((3, HEADS, STATES), float("nan"))
    outputs = stepped(some, held, asked, broken, pages_of(torch.eye(STATES)))
    assert "attention weights" in outputs.failed[0] and not outputs.vectors


def test_a_model_without_such_heads_refuses() -> None:
    asked = plan(new_sequences=(aligned(0, 3, 1),))
    with pytest.raises(PlanError, match="no heads"):
        AlignmentStep(0).enter(asked)
    other = structs.replace(aligned(0, 3, 1), pooling=None)
    AlignmentStep(0).enter(plan(new_sequences=(other,)))
