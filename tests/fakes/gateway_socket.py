"""The whole gateway on a real socket, over the fake engine, served from a thread."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from baton_gateway.app import create_app
from baton_gateway.config import Config
from baton_gateway.http.protocol import HttpProtocol
from baton_gateway.http.websocket.protocol import OPTIONS
from tests.fakes.gateway_engine import FakeEngine
from tests.support.served_system import until


class Site:
    """The application over the fake engine, served from a thread."""

    def __init__(self, **settings: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="baton-")
        folder = Path(self._folder.name)
        paths = {"store_path": folder / "store", "batch_path": folder / "batches"}
        config = Config(service_wait_seconds=0.2, **paths | settings)
        self.engine = FakeEngine(config)
        app = create_app(config, self.engine)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, port=0, http=HttpProtocol, log_config=None, loop="uvloop",
                timeout_graceful_shutdown=1, **OPTIONS,
            )
        )  # fmt: skip
        self._thread = threading.Thread(target=self._server.run)

    def start(self) -> None:
        self._thread.start()
        until(lambda: self._server.started, "the server has started")
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()
        self._folder.cleanup()

    def connect(self, receive_bytes: int = 0) -> socket.socket:
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(60)
        client.connect(("127.0.0.1", self.port))
        return client


@contextmanager
def site(**settings: Any) -> Iterator[Site]:
    here = Site(**settings)
    here.start()
    try:
        yield here
    finally:
        here.stop()


def post(path: str, body: Any, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(data)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + data
