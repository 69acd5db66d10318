"""The index against its formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.checkpoint.quantized_loading import choose_precision
from baton_worker.layers.attention.indexer import Exact, Indexer, scores
from baton_worker.layers.attention.sparse_plan import BLOCK, Chosen, Late
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.rope.rope import Angles, Rotary, rotate_
from tests.support.worker.indexer_settings import (
    ROPE,
    SETTINGS,
)

CPU = torch.device("cpu")
LENGTH = 150


def made(context: BuildContext, settings: Any = SETTINGS) -> tuple[Indexer, dict[str, Tensor]]:
    indexer = Indexer(settings, 8, context)
    parts = [part for part in indexer.modules() if isinstance(part, Layer)]
    weights = {
        name: rows.copy_(torch.randn(rows.shape)).clone()
        for part in parts
        for name, rows in part.weight_targets()
    }
    for part in parts:
        part.process_weights_after_loading()
    return indexer, weights


def angles_of(positions: Tensor) -> Angles:
    return Rotary(ROPE, CPU).angles(positions, torch.float32)


def late_of(start: int) -> Late:
    batch = AttentionBatch.build([LENGTH - start], [start], [list(range(10))], 16, CPU)
    call = AttentionSpec(3, 1, 10, 0.4, None, torch.float32, CPU, latent=True, most_keys=11)
    late = Chosen(ReferenceBackend()).plan(batch, call).late
    assert late is not None
    return late


def turned(x: Tensor, *, interleaved: bool) -> Tensor:
    """[T, heads, dim] by positions from 0, as the paper has it or in halves."""
    phase = torch.arange(len(x))[:, None, None] * 100.0 ** (-torch.arange(0, 4, 2) / 4)
    pairs = ((0, 1), (2, 3)) if interleaved else ((0, 2), (1, 3))
    out = x.clone()
    for number, (a, b) in enumerate(pairs):
        cos, sin = phase[..., number].cos(), phase[..., number].sin()
        out[..., a] = x[..., a] * cos - x[..., b] * sin
        out[..., b] = x[..., b] * cos + x[..., a] * sin
    return out


def expected(x: Tensor, low: Tensor, w: dict[str, Tensor], *, interleaved: bool) -> Tensor:
    """Scores [T, T]."""
    query = turned((low @ w["index_query.weight"].T).view(-1, 8, 9), interleaved=interleaved)
    key = x @ w["index_key.weight"].T
    spread = (key.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
    key = (key - key.mean(-1, keepdim=True)) / spread
    key = key * w["index_key_norm.weight"] + w["index_key_norm.bias"]
    key = turned(key[:, None], interleaved=interleaved)[:, 0]
    weights = x @ w["index_weights.weight"].T
    return torch.einsum("th,ths->ts", weights, torch.einsum("thd,sd->ths", query, key).relu())


@pytest.mark.row("F04.26")
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("start", [0, 60, 149])
def test_the_keys_of_the_highest_scores_are_chosen(
    context: BuildContext, interleaved: bool, start: int
) -> None:
    assert SETTINGS.indexer is not None
    own = replace(SETTINGS.indexer, interleaved=interleaved)
    indexer, weights = made(context, replace(SETTINGS, indexer=own))
    x, low = torch.randn(LENGTH, 8), torch.randn(LENGTH, 7)
    rows = torch.zeros(160, SETTINGS.kept_width)
    with torch.inference_mode():
        rows[:LENGTH, SETTINGS.width :] = indexer.keys(x, angles_of(torch.arange(LENGTH)))
        angles, late = angles_of(torch.arange(start, LENGTH)), late_of(start)
        found = indexer(x[start:], low[start:], angles, late, rows)
    every = expected(x, low, weights, interleaved=interleaved)
    first = LENGTH - len(found)
    assert found.shape == (LENGTH - max(start, 11), 11) and found.dtype is torch.int32
    for token, slots in enumerate(found.tolist(), start=first):
        best = every[token, : token + 1].topk(11).indices.sort().values
        assert slots == best.tolist()


@pytest.mark.usefixtures("seeded")
def test_what_is_chosen_does_not_depend_on_how_many_are_chosen_for(context: BuildContext) -> None:
    """Not by a bit of the scores: they are compared with their neighbours'."""
    indexer, _ = made(context)
    x, low = torch.randn(LENGTH, 8), torch.randn(LENGTH, 7)
    # Each key three times: whole groups of scores that are equal, or differ if a bit does.
    x[50:100], x[100:150] = x[:50].clone(), x[:50].clone()
    still = Angles(torch.ones(LENGTH, 1, 4), torch.zeros(LENGTH, 1, 4), interleaved=True)
    rows = torch.zeros(160, SETTINGS.kept_width)
    with torch.inference_mode():
        rows[:LENGTH, SETTINGS.width :] = indexer.keys(x, still)
        whole = indexer(x, low, still, late_of(0), rows)
        for start in (40, 148, 149):
            some = torch.arange(start, LENGTH)
            part = indexer(x[start:], low[start:], still.of(some), late_of(start), rows)
            assert torch.equal(part, whole[start - 11 :])


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("heads", [1, 8, 32, 64])
def test_scores_have_the_same_bits_beside_any_others(heads: int) -> None:
    query, weights = torch.randn(9, heads, 128), torch.randn(9, 1, heads)
    keys = torch.randn(9, 5 * BLOCK, 128)
    whole = scores(query, weights, keys)
    for tokens in (slice(0, 1), slice(3, 5), slice(8, 9)):
        for blocks in (1, 2, 5):
            first = keys[tokens, : blocks * BLOCK].contiguous()
            some = scores(query[tokens], weights[tokens], first)
            assert torch.equal(some, whole[tokens, : blocks * BLOCK])


def test_weights_of_heads_are_not_rounded(context: BuildContext) -> None:
    indexer = Indexer(replace(SETTINGS, query_rank=32), 64, replace(context, dtype=torch.bfloat16))
    parts = [part for part in indexer.modules() if isinstance(part, Layer)]
    choose_precision(parts, "int8")
    assert isinstance(indexer.weights, Exact) and indexer.weights.weight is not None
    exact = indexer.weights.weight.data.normal_().clone()
    assert exact.dtype is torch.float32
    for part in parts:
        part.process_weights_after_loading()
    x = torch.randn(3, 64)
    torch.testing.assert_close(indexer.weights(x), x @ exact.T, rtol=1e-5, atol=1e-5)


def test_keys_turn_in_their_first_channels_alone(context: BuildContext) -> None:
    indexer, _ = made(context)
    x = torch.randn(1, 8).expand(20, -1)
    with torch.inference_mode():
        keys = indexer.keys(x, angles_of(torch.arange(20)))
    assert torch.equal(keys[1:, 4:], keys[:-1, 4:])
    assert not torch.isclose(keys[1:, :4], keys[:-1, :4]).all(-1).any()
    back = keys[:, None].clone()
    angles = angles_of(torch.arange(20)).laid_out(interleaved=False)
    rotate_(back, Angles(angles.cos, -angles.sin))
    torch.testing.assert_close(back[:, 0], keys[:1].expand(20, -1), rtol=1e-4, atol=1e-4)
