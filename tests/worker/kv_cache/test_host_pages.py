"""Whole pages to host memory and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import SettingsError
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache.host_pages import HostPages
from tests.fakes.page_caches import filled


@pytest.mark.row("F12.08")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_come_back_as_they_were_in_every_layer(dtype: torch.dtype) -> None:
    shapes = [(6, 4, 2, 1, 8), (6, 4, 2, 3, 2)]
    cache: Any = SimpleNamespace(planes=[torch.randn(shape).to(dtype) for shape in shapes])
    before = [layer.clone() for layer in cache.planes]
    host = HostPages(cache, 3)
    host.store([5, 1], [0, 2])
    for layer in cache.planes:
        layer[[5, 1]] = 0
    host.load([2, 0], [3, 4])
    for layer, old in zip(cache.planes, before, strict=True):
        assert torch.equal(layer[3], old[1]) and torch.equal(layer[4], old[5])
        assert torch.equal(layer[[0, 2]], old[[0, 2]]), "other pages are left alone"


def test_a_page_can_be_replaced() -> None:
    cache: Any = SimpleNamespace(planes=[torch.arange(4.0).reshape(4, 1, 1, 1, 1)])
    host = HostPages(cache, 1)
    host.store([1], [0])
    host.store([3], [0])
    host.load([0], [2])
    assert cache.planes[0].flatten().tolist() == [0.0, 1.0, 3.0, 3.0]
    with pytest.raises(SettingsError, match="no memory for 1000000000000000000 pages"):
        HostPages(cache, 10**18)


@pytest.mark.parametrize("codes", CODES.values(), ids=str)
def test_pages_of_codes_come_back_with_their_scales(codes: Any) -> None:
    cache = filled(8, codes)
    before = [layer.clone() for layer in cache.planes]
    host = HostPages(cache, 2)
    host.store([5, 1], [1, 0])
    host.load([0], [3])
    cache.copy([5], [2])
    for layer, old in zip(cache.planes, before, strict=True):
        assert torch.equal(layer[3], old[1]) and torch.equal(layer[2], old[5])


@pytest.mark.parametrize("layout", Layout)
def test_pages_keep_their_order_in_host_memory(layout: Layout) -> None:
    cache = filled(8, layout=layout)
    before = [layer.clone() for layer in cache.planes]
    host = HostPages(cache, 2)
    assert [mine.stride() for mine in host._planes] == [one.stride() for one in cache.planes]
    host.store([5, 1], [1, 0])
    host.load([0, 1], [3, 2])
    for layer, old in zip(cache.planes, before, strict=True):
        assert torch.equal(layer[[3, 2]], old[[1, 5]])
