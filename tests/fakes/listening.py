"""An application on a real socket, in the event loop of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from baton_gateway.http.protocol import HttpProtocol
from baton_gateway.http.websocket.protocol import OPTIONS


@asynccontextmanager
async def listening(app: Any, stop: asyncio.Event | None = None) -> AsyncIterator[str]:
    """Serve `app`, whose lifespan has begun, and give its address ("127.0.0.1:1234") until the end,
    or until `stop` is set."""
    server = uvicorn.Server(
        uvicorn.Config(
            app, port=0, http=HttpProtocol, lifespan="off", log_config=None,
            timeout_graceful_shutdown=30, **OPTIONS,
        )
    )  # fmt: skip
    stopping = stop or asyncio.Event()
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    ending = asyncio.create_task(_end(server, stopping))
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        stopping.set()
        await ending
        await serving


async def _end(server: uvicorn.Server, stop: asyncio.Event) -> None:
    await stop.wait()
    server.should_exit = True
