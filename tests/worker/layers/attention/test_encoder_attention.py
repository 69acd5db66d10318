"""Attention within whole texts, against the definition."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from baton_worker.attention.selector import AttentionSelector
from baton_worker.layers.attention.encoder_attention import EncoderAttention
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.layers.build_context import BuildContext
from baton_worker.spec import Attention, CausalAttention, HalfCausalAttention, Mask

CPU = torch.device("cpu")
COUNTS = [5, 1, 9, 5, 2]
LONG = [4, 4, 330]
"""More keys than the CPU kernel takes in one partition."""


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_each_text_sees_itself(backend: str) -> None:
    """By the kernel of the CPU and by torch."""
    generator = torch.Generator().manual_seed(0)
    context = BuildContext(CPU, torch.float32, attention=AttentionSelector(backend))
    for num_kv_heads, window, counts in product((4, 2), (None, 2), (COUNTS, LONG, [4, 4])):
        for kind in (Attention, CausalAttention, HalfCausalAttention):
            if kind is HalfCausalAttention and window is not None:
                continue
            settings = kind(4, num_kv_heads, 8, 0.3, rope=None, mask=Mask(window))
            heads = torch.randn(sum(counts), 4 + 2 * num_kv_heads, 8, generator=generator)
            ours = EncoderAttention(settings, context)(heads, by_length(counts, CPU), {})
            expected = torch.cat([_plain(part, settings) for part in heads.split(counts)])
            assert torch.allclose(ours, expected, atol=1e-5), (settings, counts)


def test_what_is_no_key_is_not_seen() -> None:
    settings = Attention(4, 2, 8, 0.3, rope=None)
    heads = torch.randn(8, 8, 8, generator=torch.Generator().manual_seed(0))
    is_key = torch.tensor([True, False, True, True, True, True, False, True])
    context = BuildContext(CPU, torch.float32)
    ours = EncoderAttention(settings, context)(heads, by_length([4, 4], CPU, is_key), {})
    heads[~is_key, 4:] = 100.0
    others = EncoderAttention(settings, context)(heads, by_length([4, 4], CPU, is_key), {})
    assert torch.equal(ours[is_key], others[is_key])


def test_layers_of_a_kind_share_a_plan_and_a_text_has_its_own_bits() -> None:
    """bfloat16, in other company."""
    context, plans = BuildContext(CPU, torch.bfloat16), dict[object, object]()
    settings = Attention(4, 4, 72, 0.1, rope=None)
    heads = torch.randn(12 + 70, 12, 72, generator=torch.Generator().manual_seed(0)).bfloat16()
    texts, layers = (
        by_length([12, 70], CPU),
        [EncoderAttention(settings, context) for _ in range(2)],
    )
    both = [layer(heads, texts, plans) for layer in layers]
    alone = layers[0](heads[12:], by_length([70], CPU), {})
    assert torch.equal(both[0], both[1]) and torch.equal(both[0][12:], alone)
    assert len(plans) <= 1


def _plain(heads: torch.Tensor, settings: Attention) -> torch.Tensor:
    """One text, [n, q + k + v, dim] to [n, q * dim]."""
    sizes = (settings.num_heads, settings.num_kv_heads, settings.num_kv_heads)
    query, key, value = heads.split(sizes, dim=1)
    group = settings.num_heads // settings.num_kv_heads
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * settings.scale
    position = torch.arange(len(heads))
    hidden = torch.zeros(len(heads), len(heads), dtype=torch.bool)
    if settings.mask.window is not None:
        hidden |= (position[:, None] - position).abs() > settings.mask.window
    if isinstance(settings, CausalAttention | HalfCausalAttention):
        hidden |= position > position[:, None]
    if isinstance(settings, HalfCausalAttention):
        hidden &= position >= len(heads) // 2
    scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
