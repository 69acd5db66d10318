"""POST /pause and /resume, GET /is_paused, for operators, in vLLM's shape"""

from __future__ import annotations

from typing import get_args

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton.protocol import Pause, PauseMode, Resume
from baton_gateway.api.documentation.description import describe
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response

router = APIRouter()
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class PauseStatus(msgspec.Struct):
    """Response of /pause and /resume."""

    status: str


class IsPaused(msgspec.Struct):
    """Response of /is_paused."""

    is_paused: bool


@router.post("/pause")
@describe(answer=PauseStatus)
async def pause(request: Request) -> Response:
    """Pause a model until /resume; new requests wait. `mode` decides about running ones: keep (they
    continue after the pause), wait (they finish first) or abort."""
    engine, mode = _engine(request), request.query_params.get("mode", "keep")
    if mode not in get_args(PauseMode):
        names = ", ".join(get_args(PauseMode))
        raise InvalidRequest(f"mode is one of {names} (got '{mode[:20]}').", param="mode")
    clear = request.query_params.get("clear_cache", "false").lower()
    if clear not in _FLAGS:
        raise InvalidRequest("clear_cache is true or false.", param="clear_cache")
    model = (await engine.models.get(request.query_params.get("model"))).model
    await engine.administration.change_state(model, Pause(mode, _FLAGS[clear]))  # type: ignore[arg-type]
    return json_response(PauseStatus("paused"))


@router.post("/resume")
@describe(answer=PauseStatus)
async def resume(request: Request) -> Response:
    """Resume a model after /pause."""
    engine = _engine(request)
    model = (await engine.models.get(request.query_params.get("model"))).model
    await engine.administration.change_state(model, Resume())
    return json_response(PauseStatus("resumed"))


@router.get("/is_paused")
@describe(answer=IsPaused)
async def is_paused(request: Request) -> Response:
    """Return whether a model is paused."""
    model_info = await _engine(request).models.get(request.query_params.get("model"))
    return json_response(IsPaused(model_info.paused))


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine
