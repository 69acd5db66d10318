"""GET /fleet and /fleet/stream: state of the system, for the fleet page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.documentation.description import describe
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response
from baton_gateway.streaming.event_frames import EventFrames
from baton_gateway.streaming.sse import EventStream

router = APIRouter()
_INTERVAL_SECONDS = 1.0


@router.get("/fleet")
@describe(answer=dict[str, Any])
async def fleet(request: Request) -> Response:
    """Return the current state of the system."""
    engine: Engine = request.app.state.engine
    return json_response(engine.snapshot())


@router.get("/fleet/stream")
@describe(events=dict[str, Any])
async def stream(request: Request) -> Response:
    """Stream the state of the system every second until a disconnect or drain."""
    config: Config = request.app.state.config
    return EventStream(
        _snapshots(request.app.state.engine),
        EventFrames(),
        keep_alive=config.keep_alive_seconds,
        stall=config.slow_client_seconds,
        done=False,
    )


async def _snapshots(engine: Engine) -> AsyncGenerator[bytes, None]:
    while not engine.status.draining:
        yield msgspec.json.encode(engine.snapshot())
        await asyncio.sleep(_INTERVAL_SECONDS)
