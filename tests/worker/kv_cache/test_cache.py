"""Page tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.page_layout import Layout
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.kv_cache import KVCache, page_groups
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.spec import (
    Attention,
    ContextShard,
    Decoder,
    Head,
    LinearAttention,
    Mask,
    Norm,
    ShortConv,
)

CPU = torch.device("cpu")


def test_pages_start_clean_and_views_share_their_memory(kv_spec: Any) -> None:
    cache = KVCache(kv_spec, 5, 4, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert [tuple(layer.shape) for layer in cache.layers] == [(5, 4, 2, 2, 8), (5, 4, 2, 1, 16)]
    assert not any(layer.any() for layer in cache.layers)
    cache.layers[1][3, 2, 0] = 1
    cache.layers[1][3, 2, 1] = 2
    assert (cache.key(1)[3, 2] == 1).all() and (cache.value(1)[3, 2] == 2).all()
    assert cache.key(0).shape == (5, 4, 2, 8)


def test_copied_pages_are_equal_in_every_layer_and_apart(kv_spec: Any) -> None:
    cache = KVCache(kv_spec, 5, 4, dtype=torch.float32, device=torch.device("cpu"))
    for layer in cache.layers:
        layer.uniform_()
    before = [layer.clone() for layer in cache.layers]
    cache.copy([0, 3], [4, 1])
    for layer, old in zip(cache.layers, before, strict=True):
        assert torch.equal(layer, old[[0, 3, 2, 3, 0]])
        layer[4] = 0
        assert torch.equal(layer[0], old[0])


def test_a_page_is_cleared_in_every_layer_from_a_token_on(kv_spec: Any) -> None:
    cache = KVCache(kv_spec, 5, 4, dtype=torch.float32, device=torch.device("cpu"))
    for layer in cache.layers:
        layer.fill_(1)
    cache.clear(1)
    cache.clear(2, 3)
    for layer in cache.layers:
        assert not layer[1].any() and not layer[2, 3].any()
        assert layer[[0, 3, 4]].all() and layer[2, :3].all()


def shared(rank: int, size: int) -> Decoder:
    """A layer whose tokens several ranks share, and one in a window."""
    every = Attention(4, 1, 8, 1.0, rope=None, context=ContextShard(rank, size))
    windowed = replace(every, context=None, mask=Mask(window=8))
    return Decoder(16, 32, ((every, None), (windowed, None)), Norm(1e-5), Head())


@pytest.mark.row("F14.09")
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_share_tokens_have_a_part_of_a_page_each(size: int, grouped: bool) -> None:
    found = []
    for rank in range(size):
        spec = shared(rank, size)
        groups = page_groups(spec, 8, torch.float32) if grouped else None
        cache = KVCache(spec, 5, 8, dtype=torch.float32, device=CPU, groups=groups)
        every, windowed = cache.layers
        assert every.shape == (5, 8 // size, 2, 1, 8) and windowed.shape == (5, 8, 2, 1, 8)
        assert [track.span for track in cache.tracks] == [size, 1]
        every.fill_(1)
        cache.clear(2)
        cache.clear(3, 5)
        assert not every[2].any() and every[[0, 1, 4]].all()
        found.append(every[3, :, 0, 0, 0])
    # Row after row, rank after rank, they are the tokens of a page.
    assert torch.stack(found, 1).flatten().tolist() == [1.0] * 5 + [0.0] * 3


def test_a_page_is_one_contiguous_block(kv_spec: Any) -> None:
    cache = KVCache(kv_spec, 5, 4, dtype=torch.float32, device=torch.device("cpu"))
    assert all(layer[2].is_contiguous() for layer in cache.layers)


def test_pages_head_by_head_are_copied_like_others(kv_spec: Any) -> None:
    cpu = torch.device("cpu")
    made = [KVCache(kv_spec, 5, 4, dtype=torch.float32, device=cpu, layout=one) for one in Layout]
    for first, second in zip(made[0].layers, made[1].layers, strict=True):
        second.copy_(first.uniform_())
    for cache in made:
        cache.copy([0, 3], [4, 1])
        assert all(layer[2].numel() == layer.stride(0) for layer in cache.layers)
    assert made[1].layers[0].stride()[1:] == (8, 64, 32, 1)
    for first, second in zip(made[0].layers, made[1].layers, strict=True):
        assert torch.equal(first, second) and torch.equal(second[4], second[0])


def mixed(
    dtype: torch.dtype = torch.bfloat16, layout: Layout = Layout.NHD, spare: int = 0
) -> KVCache:
    """Six pages of four tokens; one layer each of attention, convolution, linear attention."""
    mixers = (
        Attention(4, 2, 8, 1.0, None),
        ShortConv(24, 3),
        LinearAttention(2, 6, (0.1, 0.2), Norm(1e-6)),
    )
    spec = Decoder(8, 10, tuple((mixer, None) for mixer in mixers), Norm(1e-6), Head())
    groups = page_groups(spec, 4, dtype)
    assert groups.windows == (0, 5, 3)
    kind: dict[str, Any] = {"dtype": dtype, "device": CPU, "layout": layout}
    return KVCache(spec, 6, 4, **kind, groups=groups, spare=spare)


def test_spare_pages_are_behind_those_that_are_given_out(kv_spec: Any) -> None:
    alike = KVCache(kv_spec, 6, 4, dtype=torch.float32, device=CPU, spare=2)
    for cache in (alike, mixed(spare=2)):
        kept = [*cache.layers, *cache.states.values()]
        assert cache.num_pages == 6 and {len(pages) for pages in kept} == {8}
    assert alike.alike and not cache.alike and cache.states


def noise(cache: KVCache) -> None:
    """Every bit set: not a number in any precision."""
    for plane in cache.planes:
        plane.fill_(255)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_other_kinds_share_pages_with_their_states(
    dtype: torch.dtype, layout: Layout
) -> None:
    cache, host = mixed(dtype, layout), None
    assert [tuple(layer.shape[1:]) for layer in cache.layers] == [
        (4, 2, 2, 8), (4, 1, 1, 24), (4, 1, 1, 24)
    ]  # fmt: skip
    kept = cache.views[2]
    assert isinstance(kept, Snapshots) and cache.views[1] is not kept
    kept.tokens[1], kept.states[1] = 2.0, 3.0
    cache.layers[0][2], cache.layers[1][3] = 4.0, 5.0
    assert (kept.tokens[1] == 2).all() and (kept.states[1] == 3).all()
    assert kept.states.dtype is torch.float32 and tuple(kept.states.shape) == (6, 2, 6, 6)
    cache.copy([1, 2], [4, 5])
    host = HostPages(cache, 2)
    host.store([4], [1])
    noise(cache)
    host.load([1], [0])
    assert (kept.tokens[0] == 2).all() and (kept.states[0] == 3).all()


def test_only_the_tokens_of_a_group_are_cleared_from_one_on() -> None:
    cache = mixed()
    kept = cache.views[2]
    kept.tokens[1], kept.states[1] = 2.0, 3.0
    cache.clear(1, 3, cache.groups.of[2])
    assert (kept.tokens[1, :3] == 2).all() and not kept.tokens[1, 3].any()
    assert (kept.states[1] == 3).all()
    cache.clear(1)
    assert not any(plane[1].any() for plane in cache.planes)


def test_a_page_that_begins_holds_nothing_of_its_last_group() -> None:
    """Row 0 begins its second page, row 1 goes on in its first one, row 2 begins: nothing came
    before that could leave its page a state."""
    cache = mixed(spare=4)
    noise(cache)
    tables = [[[0, 1], [2, 2], [3, 3]], [[0, 6], [2, 2], [7, 7]], [[0, 8], [2, 2], [9, 9]]]
    batch = AttentionBatch.build_all([3, 1, 2], [3, 2, 0], np.array(tables, np.int32), 4, CPU)
    cache.begin(batch)
    assert cache.groups.of == (0, 2, 1)
    for layer, started_pages in enumerate(([1, 3], [8, 9], [6, 7])):
        assert not cache.layers[layer][started_pages].any()
    assert cache.layers[0][[0, 2]].all() and cache.states[2][2].isnan().all()
    assert not cache.states[2][7].any() and cache.states[2][6].isnan().all()
