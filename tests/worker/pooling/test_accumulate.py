"""Chunked and whole accumulation of states give equal results."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_worker.pooling.accumulate import PoolingAccumulator
from baton_worker.pooling.recipe import PoolingRecipe, Take

STATES = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
TOKENS = torch.tensor([3, 9, 4, 9, 9, 1, 2, 3, 9, 5])
EXPECTED: dict[Take, Tensor] = {
    "last": STATES[-1:],
    "first": STATES[:1],
    "mean": STATES.mean(0, keepdim=True),
    "max": STATES.amax(0, keepdim=True),
    "steps": STATES[TOKENS == 9],
}


def gathering(take: Take) -> PoolingAccumulator:
    return PoolingAccumulator(PoolingRecipe("embed", take, "identity", 4, step_id=9))


@pytest.mark.parametrize("take", EXPECTED)
@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_chunks_are_the_whole(take: Take, chunk: int) -> None:
    some = gathering(take)
    for at in range(0, 10, chunk):
        some.add(7, STATES[at : at + chunk], TOKENS[at : at + chunk])
    assert torch.allclose(some.finish(7, 10), EXPECTED[take], atol=1e-6)


def test_slots_do_not_mix_and_begin_anew() -> None:
    some = gathering("mean")
    some.add(0, STATES[:4], TOKENS[:4])
    some.add(1, STATES[4:], TOKENS[4:])
    some.begin([0])
    some.add(0, STATES[:2], TOKENS[:2])
    assert torch.allclose(some.finish(0, 2), STATES[:2].mean(0, keepdim=True), atol=1e-6)
    assert torch.allclose(some.finish(1, 6), STATES[4:].mean(0, keepdim=True), atol=1e-6)


def test_sums_are_float32() -> None:
    """A thousand bfloat16 states do not lose the small ones."""
    some = gathering("mean")
    states = torch.full((1000, 4), 1.0078125, dtype=torch.bfloat16)
    some.add(0, states, torch.zeros(1000, dtype=torch.long))
    assert torch.allclose(some.finish(0, 1000), torch.full((1, 4), 1.0078125), atol=1e-4)


def test_no_step_is_no_row() -> None:
    some = gathering("steps")
    some.add(0, STATES[:1], TOKENS[:1])
    assert some.finish(0, 1).shape == (0, 4)
