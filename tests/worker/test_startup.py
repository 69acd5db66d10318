"""What ranks have in common before the first step."""

from __future__ import annotations

from pathlib import Path

import torch

from baton_worker.config import Config
from baton_worker.kernels.layout import Layout
from baton_worker.kv import KVCache
from baton_worker.parallel.communicator import Alone
from baton_worker.startup import load, page_settings, prepare


def test_every_setting_of_the_pages_reaches_them(stories: Path) -> None:
    config = Config(
        model=str(stories),
        device="cpu",
        dtype="float32",
        kv_cache_dtype="fp8",
        kv_cache_layout="hnd",
        num_pages=7,
        page_size=8,
        threads=1,
    )
    placement = prepare(config)
    assert torch.get_num_threads() == 1
    loaded, resolved = load(config, stories, placement, Alone())
    cache = KVCache(**page_settings(loaded, resolved))
    assert (cache.num_pages, cache.page_size, cache.layout) == (7, 8, Layout.HND)
    assert cache.codes is placement.codes and cache.groups == resolved.groups
    assert resolved.ranks == 1 and resolved.weight_bytes == loaded.weight_bytes
