"""GET /version and /metrics, POST /reset_prefix_cache"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from baton import __version__
from baton_gateway.api.documentation.description import describe
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response

router = APIRouter()


class Version(msgspec.Struct):
    """Response of /version."""

    version: str


class DroppedPages(msgspec.Struct):
    """Response of /reset_prefix_cache."""

    pages: int


@router.get("/version")
@describe(answer=Version)
async def version() -> Response:
    """Return the version of this gateway."""
    return json_response(Version(__version__))


@router.get("/metrics")
@describe(media_type="text/plain")
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format, unless disabled by the operator."""
    config: Config = request.app.state.config
    if not config.metrics:
        raise HTTPException(404)
    engine: Engine = request.app.state.engine
    return Response(engine.exported_metrics(), media_type=CONTENT_TYPE_LATEST)


@router.post("/reset_prefix_cache")
@describe(answer=DroppedPages)
async def reset_prefix_cache(request: Request) -> Response:
    """Drop all cached prefixes not in use. Returns the number of pages dropped."""
    engine: Engine = request.app.state.engine
    return json_response(DroppedPages(await engine.administration.reset_cache()))
