"""Health probes. Health requires progress: a hung worker makes it fail."""

from __future__ import annotations

from typing import Literal

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.documentation.description import describe
from baton_gateway.durable.object_store import ObjectStore
from baton_gateway.durable.streams import DurableStreams
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response

router = APIRouter()


class Liveness(msgspec.Struct):
    """Response of /health/live."""

    status: Literal["ok"] = "ok"


class Health(msgspec.Struct):
    """Response of /health."""

    status: Literal["ok", "unhealthy"]
    reasons: list[str]
    warnings: list[str] | UnsetType = UNSET


class Load(msgspec.Struct):
    """Response of /load, in vLLM's format."""

    server_load: int
    """Requests that this gateway is answering."""


@router.head("/health/live", include_in_schema=False)
@router.get("/health/live")
@router.head("/livez", include_in_schema=False)
@router.get("/livez")
@describe(answer=Liveness)
async def live() -> Response:
    """Return 200 while this process responds. Other faults are not fixed by restarting it."""
    return json_response(Liveness())


@router.head("/health", include_in_schema=False)
@router.get("/health")
@router.head("/health/ready", include_in_schema=False)
@router.get("/health/ready")
@router.head("/readyz", include_in_schema=False)
@router.get("/readyz")
@router.head("/ping", include_in_schema=False)
@router.get("/ping")
@describe(answer=Health)
async def ready(request: Request) -> Response:
    """Return 200 while requests are served, else 503 with the reasons; warnings in both cases."""
    engine: Engine = request.app.state.engine
    reasons = engine.status.unhealthy_reasons()
    streams: DurableStreams = request.app.state.streams
    objects: ObjectStore = request.app.state.objects
    warnings = [problem for problem in (streams.problem, objects.problem) if problem]
    status: Literal["ok", "unhealthy"] = "unhealthy" if reasons else "ok"
    response = json_response(Health(status, reasons, warnings or UNSET))
    if reasons:
        response.status_code = 503
        response.headers["retry-after"] = "1"
    return response


@router.get("/load")
@describe(answer=Load)
async def load(request: Request) -> Response:
    """Return how many requests are being answered."""
    engine: Engine = request.app.state.engine
    return json_response(Load(engine.status.num_requests))
