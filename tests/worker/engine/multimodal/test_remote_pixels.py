"""Pixels from a gateway of another host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from baton.net.curve import own_keys
from baton.process.pixel_store import PixelStore
from baton.protocol import Blob
from baton_gateway.clients.pixel_server import PixelServer
from baton_gateway.config import Config as GatewayConfig
from baton_ops.commands.keys import make
from baton_worker.config import Config
from baton_worker.engine.multimodal import remote_pixels
from baton_worker.engine.multimodal.pixels import PixelsError, PixelsMissing, open_pixels


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[Path]:
    make(tmp_path)
    remote_pixels.use(Config(curve_keys_dir=tmp_path))
    yield tmp_path
    remote_pixels.use(Config())


def test_pixels_come_encrypted_while_their_request_lives(
    keys: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = np.arange(6, dtype="<f4").reshape(1, 2, 3)
    config = GatewayConfig(bind_pixels="tcp://127.0.0.1:*", curve_keys_dir=keys)
    assert own_keys(config) is not None
    store = PixelStore(run_dir, max_bytes=1000)
    server = PixelServer(store, config)
    server.start()
    try:
        token = store.reserve(24)
        store.put(token, given.tobytes())
        blob = Blob("float32", (1, 2, 3), b"", token, "/nowhere.sock", store.remote)
        found = open_pixels(blob)
        assert np.array_equal(found, given) and not found.flags.writeable
        with pytest.raises(PixelsError, match="cut off"):
            open_pixels(Blob("float32", (7,), b"", token, "/nowhere.sock", store.remote))
        store.drop(token)
        with pytest.raises(PixelsMissing, match="let them go"):
            open_pixels(blob)
    finally:
        server.stop()
        store.close()
    monkeypatch.setattr(remote_pixels, "CONNECT_SECONDS", 0.05)
    with pytest.raises(PixelsMissing, match="cannot be reached"):
        open_pixels(blob)
