"""Latent attention with an index, layer by layer, against the same with a mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kv_cache.page_shapes import page_shapes
from baton_worker.layers.attention.mla import LatentAttention
from baton_worker.layers.attention.sparse_mla import SparseLatentAttention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.rope.rope import Rotary
from tests.support.worker.indexer_settings import ROPE, SETTINGS

CPU = torch.device("cpu")
PLAIN = spec.LatentAttention(
    **{name: getattr(SETTINGS, name) for name in spec.LatentAttention.__slots__}
)
LENGTH = 40


def fill(*layers: LatentAttention) -> None:
    """With the same random weights, where they have the same names."""
    values = dict[str, Tensor]()
    for layer in layers:
        for part in layer.modules():
            if isinstance(part, Layer):
                for name, rows in part.weight_targets():
                    rows.copy_(values.setdefault(name, torch.randn(rows.shape)))
                part.process_weights_after_loading()


def run(layers: list[LatentAttention], x: Tensor, sizes: list[int], pages: list[Tensor]) -> Tensor:
    """One after the other, each from the same input; what the last puts out."""
    out, start = list[Tensor](), 0
    for size in sizes:
        batch = AttentionBatch.build([size], [start], [[3, 0, 2, 1]], 16, CPU)
        positions = torch.arange(start, start + size)
        angles = {ROPE: Rotary(ROPE, CPU).angles(positions, torch.float32)}
        plans: dict[Any, Any] = {each.call: each.backend.plan(batch, each.call) for each in layers}
        step = ForwardContext(batch.slot_mapping, angles, plans)
        with torch.inference_mode():
            for layer, kept in zip(layers, pages, strict=True):
                last = layer(x[start : start + size], step, kept, None)
        out.append(last)
        start += size
    return torch.cat(out)


def pages_for(settings: spec.LatentAttention) -> Tensor:
    return torch.zeros(4, 16, 1, 1, settings.kept_width)


@pytest.mark.row("F04.26")
@pytest.mark.usefixtures("seeded")
def test_up_to_top_k_tokens_it_is_latent_attention_and_beyond_it_is_not(
    context: BuildContext,
) -> None:
    sparse, dense = SparseLatentAttention(SETTINGS, 8, context), LatentAttention(PLAIN, 8, context)
    fill(sparse, dense)
    x = torch.randn(LENGTH, 8)
    found = run([sparse], x, [LENGTH], [pages_for(SETTINGS)])
    plain = run([dense], x, [LENGTH], [pages_for(PLAIN)])
    assert torch.equal(found[:11], plain[:11])
    assert not torch.isclose(found[11:], plain[11:]).all(-1).any()


@pytest.mark.row("F04.26")
@pytest.mark.usefixtures("seeded")
def test_an_index_that_may_choose_all_leaves_all(context: BuildContext) -> None:
    wide = replace(SETTINGS, top_k=LENGTH - 1)
    sparse, dense = SparseLatentAttention(wide, 8, context), LatentAttention(PLAIN, 8, context)
    fill(sparse, dense)
    x = torch.randn(LENGTH, 8)
    found = run([sparse], x, [LENGTH], [pages_for(wide)])
    plain = run([dense], x, [LENGTH], [pages_for(PLAIN)])
    assert torch.equal(found[:-1], plain[:-1]) and not torch.isclose(found[-1], plain[-1]).all()


@pytest.mark.row("F04.26", "L05")
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("sizes", [[40], [10, 1, 29], [11, 29], [30, 1, 9]], ids=str)
def test_a_layer_without_an_index_attends_to_what_the_last_one_has_chosen(
    context: BuildContext, sizes: list[int]
) -> None:
    """As that layer itself does, if they have the same weights; whatever came before."""
    shared = replace(SETTINGS, indexer=None)
    own, other, sharing = (
        SparseLatentAttention(s, 8, context) for s in (SETTINGS, SETTINGS, shared)
    )
    fill(other)
    fill(own, sharing)
    x = torch.randn(LENGTH, 8)
    alone = run([own], x, [LENGTH], [pages_for(SETTINGS)])
    pages = [pages_for(s) for s in (SETTINGS, SETTINGS, shared)]
    assert torch.equal(run([other, own, sharing], x, sizes, pages), alone)
    pages = [pages_for(s) for s in (SETTINGS, SETTINGS, shared)]
    assert not torch.equal(run([own, other, sharing], x, sizes, pages), alone)


def test_the_cache_holds_the_key_of_the_index_where_there_is_one() -> None:
    layers = ((SETTINGS, None), (replace(SETTINGS, indexer=None), None))
    decoder = spec.Decoder(8, 9, layers, spec.Norm(1e-6), spec.Head())
    assert page_shapes(decoder, 16) == ((16, 1, 1, 19), (16, 1, 1, 10))


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
def test_codes_are_refused(context: BuildContext, codes: Any) -> None:
    with pytest.raises(ModelError, match="No kernel reads latents as"):
        SparseLatentAttention(SETTINGS, 8, replace(context, codes=codes))


def test_its_steps_are_not_captured(context: BuildContext) -> None:
    layer = SparseLatentAttention(SETTINGS, 8, context)
    assert layer.backend.capture_blocker is not None and layer.call.most_keys == 11
