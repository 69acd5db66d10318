"""POST /sleep and /wake_up, GET /is_sleeping, for operators, in vLLM's shape"""

from __future__ import annotations

from typing import get_args

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton.protocol import Sleep, WakeTag, WakeUp
from baton_gateway.api.documentation.description import describe
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response

router = APIRouter()

_TAGS: tuple[WakeTag, ...] = get_args(WakeTag)


class IsSleeping(msgspec.Struct):
    """Response of all three."""

    is_sleeping: bool


@router.post("/sleep")
@describe(answer=IsSleeping)
async def sleep(request: Request) -> Response:
    """Free the memory of an idle model: KV at level 1, weights too at level 2. The next request
    wakes it, and waits for that."""
    level = request.query_params.get("level", "1")
    if level not in ("1", "2"):
        raise InvalidRequest(f"level is 1 or 2 (got '{level[:20]}').", param="level")
    return await _change(request, Sleep(int(level)))


@router.post("/wake_up")
@describe(answer=IsSleeping)
async def wake_up(request: Request) -> Response:
    """Allocate the memory again before a request needs it: all of it, or first `tags=weights` (a
    model with only its weights still sleeps) and later `tags=kv_cache`."""
    requested = request.query_params.getlist("tags")
    if strange := [tag for tag in requested if tag not in _TAGS]:
        raise InvalidRequest(
            f"tags are {' and '.join(_TAGS)} (got '{strange[0][:20]}').", param="tags"
        )
    tags = tuple(tag for tag in _TAGS if tag in requested)
    return await _change(request, WakeUp(tags if len(tags) < len(_TAGS) else ()))


@router.get("/is_sleeping")
@describe(answer=IsSleeping)
async def is_sleeping(request: Request) -> Response:
    """Return whether all workers of a model sleep."""
    engine: Engine = request.app.state.engine
    model_info = await engine.models.get(request.query_params.get("model"))
    return json_response(IsSleeping(model_info.asleep))


async def _change(request: Request, action: Sleep | WakeUp) -> Response:
    engine: Engine = request.app.state.engine
    model_info = await engine.models.get(request.query_params.get("model"))
    await engine.administration.change_state(model_info.model, action)
    sleeps = model_info.asleep if action == WakeUp(("weights",)) else isinstance(action, Sleep)
    return json_response(IsSleeping(sleeps))
