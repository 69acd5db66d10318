"""Pixels for workers of other hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton.net.sockets import Client, wait
from baton.net.topology import PIXELS
from baton.process.pixel_store import PixelStore
from baton.protocol import TakenPixels, TakePixels
from baton_gateway.clients.pixel_server import PixelServer
from baton_gateway.config import Config


def test_who_has_the_token_gets_the_pixels(run_dir: Path) -> None:
    store = PixelStore(run_dir, max_bytes=8)
    config = Config(bind_pixels="tcp://127.0.0.1:*", trusted_network=True)
    server = PixelServer(store, config)
    server.start()
    token = store.reserve(4)
    try:
        with Client(PIXELS, store.remote, b"worker") as client:
            for name, data in ((token, b""), (token, b"abcd"), (b"x" * 16, b"")):
                if data:
                    store.put(token, data)
                while not client.send(TakePixels(name)):
                    pass
                assert wait((client,), 5.0)
                assert [r.message for r in client.drain()] == [TakenPixels(name, data)]
    finally:
        server.stop()
        store.close()


def test_where_workers_reach_it(run_dir: Path) -> None:
    store = PixelStore(run_dir, max_bytes=8)
    try:
        with pytest.raises(SettingsError, match="exposes"):
            PixelServer(store, Config(bind_pixels="tcp://127.0.0.1:*"))
        given = Config(
            bind_pixels="tcp://127.0.0.1:*", advertise_pixels="tcp://a:1", trusted_network=True
        )
        server = PixelServer(store, given)
        server.start()
        server.stop()
        assert store.remote == "tcp://a:1"
    finally:
        store.close()
