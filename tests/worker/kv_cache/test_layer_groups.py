"""Which layers share pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton_worker.kv_cache import (
    KVCache,
    LayerGroups,
    bytes_per_page,
    group_bytes,
    one_group,
    page_groups,
)
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.spec import Mask

CPU = torch.device("cpu")


def seeing(spec: Any, *windows: int | None, chunk: int | None = None) -> Any:
    """Layers of one shape, with these windows."""
    mixer, masks = spec.layers[0][0], [Mask(n, chunk) for n in windows]
    return replace(spec, layers=tuple((replace(mixer, mask=mask), None) for mask in masks))


def of(spec: Any) -> LayerGroups:
    """Those of a model in float32, in pages of four tokens."""
    return page_groups(spec, 4, torch.float32)


def gemma(spec: Any, layers: int) -> Any:
    """Every sixth layer sees all."""
    return seeing(spec, *(None if n % 6 == 5 else 9 for n in range(layers)))


def test_layers_that_see_alike_are_one_group(kv_spec: Any) -> None:
    for spec, window in ((seeing(kv_spec, None, None), 0), (seeing(kv_spec, 9, 9), 9)):
        assert of(spec) == one_group(spec, 4) == LayerGroups((window,), (0, 0), (0, 1))


def test_the_widest_window_counts_in_one_group_and_only_if_every_layer_has_one(
    kv_spec: Any,
) -> None:
    assert one_group(seeing(kv_spec, 4, 9, 6), 4).windows == (9,)
    assert one_group(seeing(kv_spec, 4, None, 6), 4).windows == (0,)
    without = replace(kv_spec, layers=((None, None), *seeing(kv_spec, 5).layers))
    assert one_group(without, 4).windows == of(without).windows == (5,)
    assert one_group(replace(kv_spec, layers=((None, None),)), 4).windows == (0,)


def test_layers_of_other_shapes_have_parts_of_a_page_that_is_bytes(kv_spec: Any) -> None:
    """Two layers that keep 256 bytes of a block, and four that keep 320."""
    small, mask = kv_spec.layers[0][0], Mask(window=9)
    large = replace(kv_spec.layers[1][0], head_dim=20, mask=mask)
    spec = replace(kv_spec, layers=((small, None), *[(large, None)] * 4, (small, None)))
    groups = of(spec)
    assert groups == LayerGroups((0, 9, 9, 9, 9), (0, 1, 2, 3, 4, 0), (0, 0, 0, 0, 0, 1))
    assert group_bytes(spec, groups, 4, torch.float32) == 2 * 4 * 2 * 2 * 8 * 4
    cache = KVCache(spec, 6, 4, dtype=torch.float32, device=CPU, groups=groups)
    assert sum(plane.nbytes for plane in cache.planes) == 6 * 1024 and not cache.alike
    assert [tuple(layer.shape) for layer in cache.layers[:2]] == [(6, 4, 2, 2, 8), (6, 4, 2, 1, 20)]
    for page, layer in enumerate(cache.layers):
        layer[page] = page + 1.0
    for page, layer in enumerate(cache.layers):
        assert (layer[page] == page + 1).all()
    assert not cache.layers[5][0].any(), "the other layer of its group has the rest of the page"


def test_a_chunk_is_seen_no_further_than_a_window(kv_spec: Any) -> None:
    chunked = seeing(kv_spec, None, None, chunk=16)
    spec = replace(kv_spec, layers=(*chunked.layers, *seeing(kv_spec, None).layers))
    assert of(spec).windows == (0, 16, 16)


def test_gemma_has_five_groups_of_a_window_to_one_that_sees_all(kv_spec: Any) -> None:
    groups = of(gemma(kv_spec, 12))
    assert groups == LayerGroups(
        (0, 9, 9, 9, 9, 9), (1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0), (0,) * 6 + (1,) * 6
    )
    assert str(groups) == "6 groups of layers that see all tokens, the last 9 (5 groups)"


@pytest.mark.parametrize(
    ("layers", "windows"),
    [(26, (0, *[9] * 6)), (34, (0, *[9] * 6)), (48, (0, *[9] * 5)), (62, (0, *[9] * 6))],
)
def test_no_plane_is_empty_where_tokens_see_most(
    kv_spec: Any, layers: int, windows: tuple[int, ...]
) -> None:
    """The sizes of Gemma 3: 1B, 4B, 12B and 27B."""
    groups = of(gemma(kv_spec, layers))
    assert groups.windows == windows
    assert groups.of.count(0) == max(groups.planes) + 1


@given(st.lists(st.sampled_from([None, 4, 9]), min_size=1, max_size=70))
def test_no_two_layers_have_one_plane_of_one_group(windows: list[int | None]) -> None:
    from tests.fakes.page_caches import spec as made

    groups = of(seeing(made(1, 4), *windows))
    assert len(set(zip(groups.of, groups.planes, strict=True))) == len(windows)
    assert len(groups.windows) <= 8
    if len(groups.windows) > 1:
        seen = [groups.windows[group] or None for group in groups.of]
        assert seen == windows


@pytest.mark.row("F12.01")
def test_groups_share_one_pool_of_pages(kv_spec: Any) -> None:
    spec = replace(gemma(kv_spec, 6), layers=((None, None), *gemma(kv_spec, 6).layers))
    groups = of(spec)
    cache = KVCache(spec, 5, 4, dtype=torch.float32, device=CPU, groups=groups)
    size = sum(plane.numel() * plane.element_size() for plane in cache.planes)
    assert size == 5 * group_bytes(spec, groups, 4, torch.float32)
    assert 6 * size == 5 * bytes_per_page(spec, 4, torch.float32)
    assert cache.layers[0].numel() == 0 and len(cache.layers) == 7
    for layer in range(1, 7):  # Page n is of the group of layer n.
        cache.layers[layer][layer - 2] = layer
    for layer in range(1, 7):
        assert (cache.key(layer)[layer - 2] == (layer if layer > 1 else 6)).all()


def test_a_page_is_copied_cleared_and_swapped_whatever_its_group(kv_spec: Any) -> None:
    spec = gemma(kv_spec, 12)
    cache = KVCache(spec, 6, 4, dtype=torch.float32, device=CPU, groups=of(spec))
    host = HostPages(cache, 2)
    cache.layers[2][0], cache.layers[8][0] = 3.0, 4.0
    cache.copy([0], [5])
    host.store([5], [1])
    cache.clear(5, 2)
    assert (cache.layers[8][5, :2] == 4).all() and (cache.layers[2][5, 2:] == 0).all()
    host.load([1], [3])
    assert (cache.layers[2][3] == 3).all() and (cache.layers[8][3] == 4).all()
