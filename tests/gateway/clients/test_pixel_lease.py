"""Pixels of a request: one handle per item, for as long as the request lives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import Unavailable
from baton.process.pixel_store import PixelStore, take
from baton.protocol import Blob, Media
from baton_gateway.clients.pixel_lease import PixelLease


def sequences(*names: bytes) -> list[Any]:
    """Two choices of a prompt with these items."""
    media = tuple(Media(n * 32, i, 1, Blob("float32", (1,), n * 4)) for i, n in enumerate(names))
    return [SimpleNamespace(media=media) for _ in range(2)]


def test_every_item_is_shared_once_and_let_go_with_its_request(run_dir: Path) -> None:
    store = PixelStore(run_dir, max_bytes=8)
    store.start()
    try:
        lease, choices = PixelLease(lambda: store), sequences(b"a", b"b")
        asyncio.run(lease.share(choices))
        assert len(store) == 2 and choices[0].media == choices[1].media
        for name, item in zip((b"a", b"b"), choices[0].media, strict=True):
            assert item.digest == name * 32 and not item.pixels.data
            mapped = take(item.pixels.address, item.pixels.token, item.pixels.num_bytes)
            assert mapped[:] == name * 4
            mapped.close()
        other = PixelLease(lambda: store)
        with pytest.raises(Unavailable):
            asyncio.run(other.share(sequences(b"c")))
        other.release()
        lease.release()
        assert (len(store), store.num_bytes) == (0, 0)
    finally:
        store.close()


def test_without_shared_memory_pixels_stay_in_their_messages() -> None:
    lease, choices = PixelLease(lambda: None), sequences(b"a")
    before = choices[0].media
    asyncio.run(lease.share(choices))
    lease.release()
    assert choices[0].media == before


def test_a_text_opens_no_store() -> None:
    lease = PixelLease(lambda: pytest.fail("nothing is to be shared"))
    asyncio.run(lease.share([SimpleNamespace(media=())]))
    lease.release()
