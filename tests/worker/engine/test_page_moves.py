"""Pages that a plan moves: out, in, copied, in this order."""

from __future__ import annotations

import pytest
import torch

from baton.protocol.token_columns import pack
from baton_worker.engine.batch.block_tables import BlockTables
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.nan_quarantine import NanQuarantine
from baton_worker.engine.page_moves import PageMoves
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from tests.fakes.page_caches import spec
from tests.support.worker.plans import entering, plan


def setting() -> tuple[KVCache, BlockTables, PageMoves]:
    """Eight pages of four tokens, each full of its own number; three pages on the host."""
    cache = KVCache(spec(1, 1), 8, 4, dtype=torch.float32, device=torch.device("cpu"))
    for layer in cache.layers:
        for page in range(8):
            layer[page] = float(page)
    tables = BlockTables(2, 16, 4, 8)
    quarantine = NanQuarantine(cache, tables)
    tables.tables[0, 0, 0], tables.num_pages[0] = 6, 1
    quarantine.add(0)
    return cache, tables, PageMoves(cache, HostPages(cache, 3), quarantine, 4)


def test_pages_go_out_before_others_come_in_and_copies_come_last() -> None:
    cache, _, moves = setting()
    made = plan(
        swap_out=pack([5, 1], "I"),
        swap_in=pack([1, 2], "I"),
        copy_from=pack([2], "I"),
        copy_to=pack([3], "I"),
    )
    assert moves.apply(made) > 0.0
    for layer in cache.layers:
        assert [float(layer[page].mean()) for page in (2, 3, 5)] == [5.0, 5.0, 5.0]
    assert moves.apply(plan()) == 0.0


def test_what_lies_behind_the_used_part_of_a_copy_is_cleared() -> None:
    cache, tables, moves = setting()
    tables.tables[0, 1, :2] = [2, 6]
    moves.apply(
        plan(
            new_sequences=(entering(1, [1] * 8, computed=6),),
            copy_from=pack([4], "I"),
            copy_to=pack([6], "I"),
        )
    )
    for layer in cache.layers:
        assert (layer[6, :2] == 4.0).all() and (layer[6, 2:] == 0.0).all()


def test_copies_are_pairs() -> None:
    with pytest.raises(PlanError, match="copy columns"):
        setting()[2].apply(plan(copy_from=pack([1, 2], "I"), copy_to=pack([3], "I")))
