"""Pages of a drafter that no two sequences share."""

from __future__ import annotations

import torch

from baton_worker.drafters.block_tables import BlockTables
from baton_worker.kv_cache import KVCache
from baton_worker.spec import Attention, Decoder, Head, Norm


def test_pages_are_zeroed_when_taken_and_given_back_whole() -> None:
    layer = (Attention(num_heads=1, num_kv_heads=1, head_dim=4, scale=1.0, rope=None), None)
    decoder = Decoder(4, 8, (layer,), Norm(0.0), Head())
    cache = KVCache(decoder, 5, 4, dtype=torch.float32, device=torch.device("cpu"))
    pages = BlockTables(cache, max_num_seqs=2, max_model_len=16)
    cache.layers[0][:] = torch.nan
    assert pages.reserve(0, 9) and pages.reserve(0, 12), "three pages are enough for both"
    taken = pages.tables[0, 0, :3].tolist()
    assert len(set(taken)) == 3 and not cache.layers[0][taken].isnan().any()
    assert not pages.reserve(0, 17), "no sequence is so long"
    assert not pages.reserve(1, 12), "two pages are left"
    assert pages.reserve(1, 8)
    pages.release(0)
    assert pages.reserve(1, 16)
