"""Attention over whole texts, against the definition."""

from __future__ import annotations

import pytest
import torch

from baton_worker.layers.attention.bidirectional import attend
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.spec import Attention, CausalAttention, Mask

COUNTS = [5, 1, 9, 5, 2]


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("counts", [COUNTS, [4, 4]])
def test_each_text_sees_itself(num_kv_heads: int, window: int | None, counts: list[int]) -> None:
    settings = Attention(4, num_kv_heads, 8, 0.3, rope=None, mask=Mask(window))
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(sum(counts), 4 + 2 * num_kv_heads, 8, generator=generator)
    ours = attend(heads, by_length(counts, torch.device("cpu")), settings)
    expected = torch.cat([_plain(part, settings) for part in heads.split(counts)])
    assert torch.allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("counts", [COUNTS, [4, 4]])
@pytest.mark.parametrize("window", [None, 2])
def test_a_causal_one_looks_back(window: int | None, counts: list[int]) -> None:
    settings = CausalAttention(4, 4, 8, 0.3, rope=None, mask=Mask(window))
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(sum(counts), 12, 8, generator=generator)
    ours = attend(heads, by_length(counts, torch.device("cpu")), settings)
    expected = torch.cat([_plain(part, settings) for part in heads.split(counts)])
    assert torch.allclose(ours, expected, atol=1e-5)


def _plain(heads: torch.Tensor, settings: Attention) -> torch.Tensor:
    """One text, [n, q + k + v, dim] to [n, q * dim]."""
    sizes = (settings.num_heads, settings.num_kv_heads, settings.num_kv_heads)
    query, key, value = heads.split(sizes, dim=1)
    group = settings.num_heads // settings.num_kv_heads
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * settings.scale
    if settings.mask.window is not None:
        position = torch.arange(len(heads))
        far = (position[:, None] - position).abs() > settings.mask.window
        scores = scores.masked_fill(far, float("-inf"))
    if isinstance(settings, CausalAttention):
        scores = scores + torch.full_like(scores[0], float("-inf")).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
