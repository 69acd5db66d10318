"""Health probes. Health requires progress: a hung worker makes it fail."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.durable.streams import DurableStreams
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response

router = APIRouter()


@router.get("/health/live")
@router.get("/livez")
async def live() -> Response:
    """Return 200 while this process responds; other faults are not fixed by its restart."""
    return json_response({"status": "ok"})


@router.get("/health")
@router.get("/health/ready")
@router.get("/readyz")
async def ready(request: Request) -> Response:
    """Return 200 when requests are served, else 503 with the reasons; warnings in both cases."""
    engine: Engine = request.app.state.engine
    reasons = engine.status.unhealthy_reasons()
    streams: DurableStreams = request.app.state.streams
    warnings = {"warnings": [streams.problem]} if streams.problem else {}
    status = "unhealthy" if reasons else "ok"
    response = json_response({"status": status, "reasons": reasons, **warnings})
    if reasons:
        response.status_code = 503
        response.headers["retry-after"] = "1"
    return response
