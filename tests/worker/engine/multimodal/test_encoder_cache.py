"""Embeddings by digest, within a bound."""

from __future__ import annotations

import torch

from baton_worker.engine.multimodal.encoder_cache import EncoderCache

ROW = torch.zeros(2, 4)
BYTES = ROW.nbytes


def test_what_was_used_least_recently_goes_first_and_what_is_needed_stays() -> None:
    cache = EncoderCache(2 * BYTES)
    for name in (b"a", b"b", b"c"):
        cache.put(name, ROW.clone())
    cache.get(b"a")
    assert cache.num_bytes == 3 * BYTES
    cache.trim({b"b"})
    assert b"c" not in cache and b"a" in cache and b"b" in cache
    cache.put(b"d", ROW.clone())
    cache.trim({b"a", b"b", b"d"})
    assert len(cache) == 3, "all are needed, so the bound gives way"
    cache.trim(())
    assert len(cache) == 2 and b"d" in cache
