"""Page tensors."""

from __future__ import annotations

from typing import Any

import torch

from baton_worker.kv import KVCache


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


def test_a_page_is_one_contiguous_block(kv_spec: Any) -> None:
    cache = KVCache(kv_spec, 5, 4, dtype=torch.float32, device=torch.device("cpu"))
    assert all(layer[2].is_contiguous() for layer in cache.layers)
