"""The gRPC server of an application in this process, and stubs that call it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from baton_gateway.access.api_keys import ApiKeys
from baton_gateway.access.rate_limits import RateLimiter
from baton_gateway.grpc.server import GrpcServer
from tests.fakes.gateway_app import Site


@asynccontextmanager
async def channel(site: Site) -> AsyncIterator[grpc.aio.Channel]:
    """Serve the application of a site by gRPC too, in its event loop, and connect."""
    server = GrpcServer(site.config)
    await server.start(site.app, ApiKeys(site.config), RateLimiter())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as opened:
            yield opened
    finally:
        await server.close()


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """The error that ends a call, unary or a stream."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call was not refused")
