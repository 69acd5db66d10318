"""What a failed sequence leaves in its pages does not reach their next owner."""

from __future__ import annotations

import numpy as np
import torch

from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.block_tables import BlockTables
from baton_worker.engine.nan_quarantine import NanQuarantine
from baton_worker.kv_cache import KVCache
from tests.fakes.page_caches import spec


def setting() -> tuple[KVCache, BlockTables, NanQuarantine]:
    """Ten pages of four tokens, all NaN; slot 0 owned pages 2, 5 and 7 when it failed."""
    cache = KVCache(spec(1, 1), 10, 4, dtype=torch.float32, device=torch.device("cpu"))
    for layer in cache.layers:
        layer.fill_(torch.nan)
    tables = BlockTables(max_num_seqs=2, max_model_len=16, page_size=4, num_pages=10)
    tables.tables[0, 0, :3], tables.num_pages[0] = [2, 5, 7], 3
    quarantine = NanQuarantine(cache, tables)
    quarantine.add(0)
    return cache, tables, quarantine


def rows(slot: int, start: int, count: int) -> BatchRows:
    return BatchRows(np.array([slot]), np.array([start]), np.array([count]), np.array([True]))


def finite(cache: KVCache) -> list[int]:
    found = [[page for page in range(10) if layer[page].isfinite().all()] for layer in cache.layers]
    assert found[0] == found[1]
    return found[0]


def test_suspect_pages_are_cleared_for_the_next_writer() -> None:
    cache, tables, quarantine = setting()
    tables.tables[0, 1, :3] = [7, 3, 2]
    quarantine.clear(rows(1, 0, 5))
    assert finite(cache) == [7]
    quarantine.clear(rows(1, 5, 4))
    assert finite(cache) == [2, 7]


def test_a_page_that_holds_a_prefix_already_is_left_alone() -> None:
    cache, tables, quarantine = setting()
    tables.tables[0, 1, :2] = [2, 5]
    quarantine.clear(rows(1, 4, 2))
    assert finite(cache) == [5]


def test_a_cleared_page_is_not_suspect_any_more() -> None:
    cache, tables, quarantine = setting()
    tables.tables[0, 1, 0] = 5
    quarantine.clear(rows(1, 0, 1))
    cache.layers[0][5] = 3.0
    quarantine.clear(rows(1, 0, 1))
    assert (cache.layers[0][5] == 3.0).all()


def test_of_a_copy_only_the_part_that_is_used_is_kept() -> None:
    cache, tables, quarantine = setting()
    for layer in cache.layers:
        layer[3, :2] = 1.0
    tables.tables[0, 1, :2] = [8, 3]
    quarantine.copied(1, 6)
    for layer in cache.layers:
        assert (layer[3, :2] == 1.0).all() and (layer[3, 2:] == 0.0).all()
    assert finite(cache) == [3]


def test_a_copy_onto_a_suspect_page_is_not_cleared_later() -> None:
    cache, tables, quarantine = setting()
    cache.layers[0][5], cache.layers[1][5] = 1.0, 1.0
    tables.tables[0, 1, 0] = 5
    quarantine.copied(1, 3)
    quarantine.clear(rows(1, 0, 4))
    assert (cache.layers[0][5, :3] == 1.0).all()


def test_what_a_slot_has_written_is_erased_from_there_on() -> None:
    cache, _, quarantine = setting()
    quarantine.erase(0, 6, 9)
    assert finite(cache) == [7]
    for layer in cache.layers:
        assert layer[5, :2].isnan().all() and layer[5, 2:].isfinite().all()
        assert layer[2].isnan().all()
