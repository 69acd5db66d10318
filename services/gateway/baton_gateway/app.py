"""The ASGI application: routes, middleware, error handlers, engine life cycle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import BatonError, InvalidRequest, NotFound
from baton.logs import logger
from baton_gateway import page
from baton_gateway.access.api_keys import ApiKeys
from baton_gateway.access.rate_limits import RateLimiter
from baton_gateway.api import ROUTERS
from baton_gateway.api.documentation import docs
from baton_gateway.api.responses.background import BackgroundResponses
from baton_gateway.batches.line_runner import LineRunner
from baton_gateway.batches.runner import BatchRunner
from baton_gateway.config import Config
from baton_gateway.durable.batch_file import open_batch_file
from baton_gateway.durable.batch_store import BatchStore
from baton_gateway.durable.file_store import FileStore
from baton_gateway.durable.journal import open_journal
from baton_gateway.durable.object_store import open_store, prune_forever
from baton_gateway.durable.streams import DurableStreams
from baton_gateway.durable.upload_store import UploadStore
from baton_gateway.engine import Engine
from baton_gateway.http.allowed_hosts import AllowedHosts
from baton_gateway.http.body_reader import BodyReader
from baton_gateway.http.cors import CorsPolicy
from baton_gateway.http.disconnect import cancel_tasks
from baton_gateway.http.error_formats import encoder_of
from baton_gateway.http.errors import respond
from baton_gateway.http.middleware import RequestMiddleware

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

    from baton_gateway.grpc.server import GrpcServer

log = logger(__name__)


def create_app(config: Config, engine: Engine) -> FastAPI:
    """Create the ASGI application. Its lifespan starts and closes the engine, and the gRPC server
    in `app.state.rpc`, if any."""
    app = FastAPI(
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={BatonError: _on_error, HTTPException: _on_http_error},
    )
    _set_state(app, config, engine)
    _include_routers(app, config)
    _add_middleware(app, config, engine)
    return app


def _set_state(app: FastAPI, config: Config, engine: Engine) -> None:
    """State shared by requests: stores, streams, keys and limits."""
    state = app.state
    state.config, state.engine, state.rpc = config, engine, None
    state.keys = ApiKeys(config)
    state.limiter = RateLimiter(_redis(config.redis_url) if config.redis_url else None)
    state.bodies, state.objects = BodyReader(config), open_store(config)
    state.streams = DurableStreams(
        open_journal(config), config.unread_stream_seconds, lambda: engine.status.partitioned
    )
    state.background = BackgroundResponses(
        app, engine, state.streams, state.objects, state.keys, state.limiter
    )
    state.database = open_batch_file(config)
    state.batches = BatchStore(state.database)
    state.files = FileStore(state.database, config.max_stored_file_bytes)
    state.uploads = UploadStore(state.database, state.files)
    engine.preprocessors.read_file = state.files.content


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state = app.state
    await state.engine.start()
    await state.streams.start()
    pruning = asyncio.create_task(prune_forever(state.objects))
    await state.background.start()
    runner = BatchRunner(state.config, state.batches, state.files, LineRunner(app), state.keys)
    await state.engine.settle()
    runner.start()
    rpc: GrpcServer | None = state.rpc
    if rpc is not None:
        await rpc.start(app, state.keys, state.limiter)
    try:
        yield
    finally:
        if rpc is not None:
            await rpc.close()
        await runner.close()
        await state.database.close()
        await cancel_tasks(pruning)
        # Objects are closed before those that they use.
        closing = (state.background, state.streams, state.objects, state.engine)
        for part in (*closing, state.limiter, state.bodies):
            await part.close()


def _include_routers(app: FastAPI, config: Config) -> None:
    for router in ROUTERS:
        app.include_router(router)
    if not config.disable_fastapi_docs:
        app.include_router(docs.router)
    if config.playground:
        app.include_router(page.router)


def _add_middleware(app: FastAPI, config: Config, engine: Engine) -> None:
    cors = CorsPolicy.of(config)
    app.add_middleware(
        RequestMiddleware,
        hosts=AllowedHosts(config.allowed_hosts, config.host),
        keys=app.state.keys,
        limiter=app.state.limiter,
        metrics=engine.metrics,
        ledger=engine.timelines,
        cors=cors,
    )
    if cors.origins:
        # Outermost: preflight requests carry no key, and pages must be able to read refusals.
        app.add_middleware(CORSMiddleware, **cors.options())


def _redis(url: str) -> ConnectionPool:
    from redis.asyncio import ConnectionPool

    return ConnectionPool.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BatonError)
    if error.status >= 500:
        log.warning("%s: %s", error.code, error.message)
    return respond(error, encoder_of(request.scope))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Convert the router's errors: unknown paths, and unsupported methods."""
    assert isinstance(error, HTTPException)
    method, path = request.method[:16], request.url.path[:200]
    if error.status_code == 405:
        refusal = InvalidRequest(
            f"Not allowed to {method} on {path}. (HINT: Perhaps you meant to use a different HTTP "
            "method?)",
            code="method_not_supported",
            status=405,
        )
    elif error.status_code == 404:
        refusal = NotFound(f"Invalid URL ({method} {path})")
    else:
        refusal = InvalidRequest(str(error.detail), status=error.status_code)
    response = respond(refusal, encoder_of(request.scope))
    if error.status_code == 405:
        response.headers["allow"] = _allowed(request)
    return response


def _allowed(request: Request) -> str:
    """Return the methods of a path, over all of its routes."""
    routers = (*ROUTERS, docs.router, page.router)
    methods = {
        method
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute) and route.path_regex.match(request.scope["path"])
        for method in route.methods or ()
    }
    return ", ".join(sorted(methods))
