"""WebSocket /v1/realtime: sessions of OpenAI's Realtime API that transcribe.

https://platform.openai.com/docs/guides/realtime-transcription
"""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.websockets import WebSocket

from baton.errors import Unavailable
from baton_gateway.access.rate_limits import RequestQuota
from baton_gateway.api.realtime.session import RealtimeSession
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.http.websocket.handshake import subprotocol

router = APIRouter()


@router.websocket("/v1/realtime")
async def realtime(socket: WebSocket) -> None:
    """Transcribe audio while it arrives."""
    config: Config = socket.app.state.config
    engine: Engine = socket.app.state.engine
    quota: RequestQuota = socket.scope["state"]["quota"]
    sessions = engine.metrics.realtime
    if engine.status.draining:
        raise Unavailable("This gateway is shutting down. Connect again.", retry_after=1)
    if sessions.open >= config.max_realtime_sessions:
        raise Unavailable("Too many realtime sessions are open. Try again later.", retry_after=1)
    started_at = time.monotonic()
    sessions.opened()
    try:
        await socket.accept(subprotocol(socket.headers))
        await RealtimeSession(socket, quota).run()
    finally:
        sessions.closed(time.monotonic() - started_at)
