"""`baton gateway`: HTTP on uvicorn; drains on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from fastapi import FastAPI

from baton.errors import SettingsError
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import directory
from baton.net.sockets import AsyncClient
from baton.process import gc_tuning, standby
from baton.process.lifecycle import EXIT_FAULT, Lifecycle, main
from baton.process.watchdog import pulse
from baton_gateway.app import create_app
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.http.protocol import HttpProtocol
from baton_gateway.http.websocket.protocol import OPTIONS

if TYPE_CHECKING:
    from baton_gateway.grpc.server import GrpcServer

log = logger(__name__)


class Server(uvicorn.Server):
    """uvicorn with signal handlers that drain."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leaves signals to `baton.process.lifecycle.Lifecycle`."""
        yield


def server(config: Config, app: FastAPI) -> Server:
    """Create the HTTP server of an application, without starting it."""
    return Server(
        uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            http=protocol(config),
            **OPTIONS,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(config.shutdown_timeout) + 1,
        )
    )


def protocol(config: Config) -> type[HttpProtocol]:
    """The HTTP protocol with the time limits of the settings."""
    return type("Protocol", (HttpProtocol,), {"unread_seconds": config.slow_client_seconds})


def listen(config: Config) -> socket.socket:
    """Bind the socket. Raises `SettingsError` when the address is unavailable.

    A single gateway lets clients queue in the backlog while it starts. With a shared port it
    accepts no connections before it serves, because other gateways accept them.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    address = (config.host, config.port)
    try:
        if config.shared_port:
            return _bound(family, address)
        return socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        number = error.errno or 0  # Negative where the name of the host is unknown.
        why = "no such host" if number < 0 else os.strerror(number)
        raise SettingsError(
            f"Cannot listen on {config.host}:{config.port} ({why}). "
            "Choose another --host or --port."
        ) from error


def grpc_server(config: Config) -> type[GrpcServer] | None:
    """Import the gRPC server if it is enabled. Raises `SettingsError` if its package is missing."""
    if not config.grpc_port:
        return None
    try:
        from baton_gateway.grpc.server import GrpcServer
    except ImportError as error:
        raise SettingsError(
            f"--grpc-port needs a package that is missing here ({error.name}): "
            "pip install 'baton-serve[grpc]'."
        ) from error
    return GrpcServer


def _bound(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


async def run(config: Config, life: Lifecycle) -> int:
    """Serve until `life` ends. In-flight requests get `drain_seconds` to finish."""
    peers = directory(config)
    engine = Engine(config, peers, partial(AsyncClient, keys=own_keys(config)))
    app, rpc = create_app(config, engine), grpc_server(config)
    http = server(config, app)
    gc_tuning.settle()
    standby.wait()  # The event loop is still idle here, so blocking is safe.
    listening = listen(config)
    app.state.rpc = rpc(config) if rpc else None
    serving = asyncio.create_task(http.serve([listening]))
    log.info("listening on http://%s:%d", config.host, listening.getsockname()[1])
    while not serving.done():
        pulse.beat()
        engine.status.draining = http.should_exit = life.draining
        await asyncio.sleep(0.1)
    peers.close()
    await serving
    return 0 if http.started else EXIT_FAULT


def serve(config: Config, life: Lifecycle) -> int:
    """Run the gateway in this process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(config, life))


if __name__ == "__main__":
    main("gateway", Config, serve)
