"""Pixels from messages and from shared memory are the same tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from baton.process.pixel_store import PixelStore
from baton.protocol import Blob
from baton_worker.engine.multimodal.pixels import PixelsError, PixelsMissing, open_pixels


def test_pixels_come_from_a_message_or_from_shared_memory(run_dir: Path) -> None:
    given = np.arange(6, dtype="<f4").reshape(1, 2, 3)
    store = PixelStore(run_dir, max_bytes=1000)
    store.start()
    try:
        token = store.reserve(24)
        store.put(token, given.tobytes())
        inline = Blob("float32", (1, 2, 3), given.tobytes())
        shared = Blob("float32", (1, 2, 3), b"", token, store.address)
        for blob in (inline, shared):
            found = open_pixels(blob)
            assert np.array_equal(found, given) and not found.flags.writeable
        with pytest.raises(PixelsError, match="cut off"):
            open_pixels(Blob("float32", (1, 2, 3), given.tobytes()[:-1]))
        with pytest.raises(PixelsError, match="28 sealed bytes"):
            open_pixels(Blob("float32", (7,), b"", token, store.address))
        store.drop(token)
        with pytest.raises(PixelsMissing, match="--bind-pixels"):
            open_pixels(shared)
        assert np.array_equal(found, given), "it is still mapped"
    finally:
        store.close()
