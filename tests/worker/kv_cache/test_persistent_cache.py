"""KV pages that the next worker finds: the same bytes under the same hashes, or none."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.process.segments import SegmentKeeper, Segments
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.persistent_cache import PersistentCache

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd")
A, B, C = bytes(range(16)), bytes(range(16, 32)), bytes(range(32, 48)) + b"\x02"
"""Hashes of pages, the last one of another page group."""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Segments]:
    (tmp_path / "run").mkdir(mode=0o700)
    with SegmentKeeper(tmp_path / "run"):
        yield Segments(tmp_path / "run")


@pytest.fixture
def cache(kv_spec: Any) -> Callable[..., KVCache]:
    def made(num_pages: int = 300) -> KVCache:
        cpu = torch.device("cpu")
        return KVCache(kv_spec, num_pages, 16, dtype=torch.bfloat16, device=cpu, spare=1)

    return made


def lease(kept: Segments, some: KVCache, name: str = "w", settings: str = "s") -> PersistentCache:
    leased = PersistentCache.lease(kept, name, settings, some)
    assert leased is not None
    return leased


def test_the_next_worker_has_the_pages_and_hashes_of_the_last(
    kept: Segments, cache: Callable[..., KVCache]
) -> None:
    first, second = cache(), cache()
    addresses = [plane.data_ptr() for plane in first.planes]
    for plane in first.planes:
        plane.fill_(7)  # Of the warm-up.
    mine = lease(kept, first)
    assert [plane.data_ptr() for plane in first.planes] == addresses
    assert not any(plane.any() for plane in first.planes) and mine.hashes() == {}
    for plane in first.planes:
        plane.copy_(torch.randn(plane.shape).to(plane.dtype))
    mine.put({3: A, 299: B, 5: C})
    theirs = lease(kept, second)
    assert theirs.hashes() == {3: A, 299: B, 5: C}
    for plane, other in zip(first.planes, second.planes, strict=True):
        assert torch.equal(plane, other) and plane.any()


def test_what_changes_the_bytes_of_a_page_or_the_worker_begins_anew(
    kept: Segments, cache: Callable[..., KVCache]
) -> None:
    lease(kept, cache()).put({3: A})
    assert lease(kept, cache(), name="other").hashes() == {}
    assert lease(kept, cache(), settings="other").hashes() == {}
    assert lease(kept, cache()).hashes() == {}, "it is for the last of this name"
    lease(kept, cache()).put({3: A})
    assert lease(kept, cache(num_pages=301)).hashes() == {}


def test_hashes_are_taken_back_and_one_that_is_half_written_is_none(
    kept: Segments, cache: Callable[..., KVCache]
) -> None:
    mine = lease(kept, cache())
    mine.put({1: A, 2: B, 3: C})
    mine.forget([2])
    assert mine.hashes() == {1: A, 3: C}
    mine.put({1: C})
    assert mine.hashes() == {}, "two pages cannot have one hash: who knows which is right"
    mine.put({1: B})
    mine._rows[1, 17] = 0
    assert mine.hashes() == {3: C}, "the worker was killed before it had written all of it"
    mine.clear()
    assert lease(kept, cache()).hashes() == {}


def test_a_cache_that_cannot_be_kept_stays_private(
    kept: Segments, cache: Callable[..., KVCache], caplog: pytest.LogCaptureFixture
) -> None:
    small = cache(num_pages=2)
    assert PersistentCache.lease(kept, "w", "s", small) is None and kept.leased_pages() == 0
    some = cache()
    some.planes[0].fill_(7)
    with caplog.at_level(logging.INFO):
        assert PersistentCache.lease(Segments(Path("/nowhere")), "w", "s", some) is None
    assert bool((some.planes[0] == 7).all())
    assert caplog.messages[0].startswith("KV pages do not outlive this worker: [Errno 2]")


@pytest.mark.row("F19.05")
def test_memory_that_is_given_back_is_zeros_without_hashes(
    kept: Segments, cache: Callable[..., KVCache]
) -> None:
    first, second = cache(), cache()
    mine = lease(kept, first)
    mine.put({3: A})
    for plane in first.planes:
        plane.fill_(7)
    mine.give_back(first)
    assert mine.hashes() == {} and not any(bool(plane.any()) for plane in first.planes)
    assert lease(kept, second).hashes() == {}
    assert not any(bool(plane.any()) for plane in second.planes)
