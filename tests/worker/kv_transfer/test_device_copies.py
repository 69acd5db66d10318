"""KV of a GPU passes on a stream of its own, by pinned memory or none: on a device double."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baton.protocol import Grant, Pull
from baton.protocol.token_columns import pack
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.kv_transfer.page_content import PageContent, device_of
from tests.fakes.device_double import DOUBLE, DeviceTensor, Double
from tests.fakes.page_caches import LENGTH, TOKEN, cache, filled, on_double, tokens

PAGES = pack(range(8), "I")
GRANT = Grant(1, 9, TOKEN, PAGES, LENGTH)


@pytest.mark.row("F15.01")
def test_blocks_pass_beside_the_steps_and_nothing_is_pageable() -> None:
    expected = filled(8)
    for source_layout, target_layout in ((Layout.NHD, Layout.NHD), (Layout.HND, Layout.NHD)):
        for direct in (False, True):
            with torch.inference_mode():
                source, target = Double(), Double()
                there = on_double(source_layout, source, expected)
                here = on_double(target_layout, target, None)
                reader = PageContent(there, source).reader(GRANT)
                content = PageContent(here, target)
                writer = content.writer(Pull(1, 9, "", TOKEN, 0, LENGTH, PAGES))
                extents = writer.extents()
                for extent in extents:
                    size = content.block_bytes(extent)
                    block: Any = np.zeros(size, np.uint8)
                    if direct:
                        block = DeviceTensor(torch.zeros(size, dtype=torch.uint8), source)
                    reader.read(extent, block)
                    if direct:  # The same memory, opened by the other process.
                        block = DeviceTensor(block.on_host, target)
                    writer.write(extent, block)
            for double in (source, target):
                assert not double.blocking and not double.on_steps
            assert source.counts["download"] == (0 if direct else len(extents))
            assert target.counts["upload"] == len(extents) * (1 if direct else 2)
            assert target.counts["fence"] == 1
            assert target.counts["behind a fence"] == target.counts["settle"] == len(extents)
            for layer in range(2):
                held: Any = here.layers[layer]
                made = cache(8)
                made.layers[layer].copy_(held.on_host)
                pages = list(range(8))
                assert torch.equal(
                    tokens(made, layer, pages)[:LENGTH], tokens(expected, layer, pages)[:LENGTH]
                )


def test_swapped_pages_pass_by_pinned_memory() -> None:
    expected, double = filled(8), Double()
    with torch.inference_mode():
        there = on_double(Layout.NHD, double, expected)
        host = HostPages(there, 3, double)
        host.store([5, 1], [0, 2])
        host.load([2, 0], [3, 4])
    assert not double.blocking and double.counts["wait"] == double.counts["download"] == 2
    for layer, old in zip(there.layers, expected.layers, strict=True):
        held: Any = layer
        assert torch.equal(held.on_host[3], old[1]) and torch.equal(held.on_host[4], old[5])
    assert device_of(there) == DOUBLE
