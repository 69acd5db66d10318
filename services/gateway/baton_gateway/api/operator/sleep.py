"""POST /sleep and /wake_up, GET /is_sleeping, for operators, in vLLM's shape"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton.protocol import Sleep, WakeUp
from baton_gateway.api.documentation.description import describe
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response

router = APIRouter()


class IsSleeping(msgspec.Struct):
    """Response of all three."""

    is_sleeping: bool


@router.post("/sleep")
@describe(answer=IsSleeping)
async def sleep(request: Request) -> Response:
    """Free the memory of an idle model: at level 1 keys and values, at level 2 weights too. The
    next request wakes it, and waits for that."""
    level = request.query_params.get("level", "1")
    if level not in ("1", "2"):
        raise InvalidRequest(f"level is 1 or 2 (got '{level[:20]}').", param="level")
    return await _change(request, Sleep(int(level)))


@router.post("/wake_up")
@describe(answer=IsSleeping)
async def wake_up(request: Request) -> Response:
    """Take the memory back, before a request asks for it."""
    if "tags" in request.query_params:
        raise InvalidRequest("A model wakes up as a whole: leave tags out.", param="tags")
    return await _change(request, WakeUp())


@router.get("/is_sleeping")
@describe(answer=IsSleeping)
async def is_sleeping(request: Request) -> Response:
    """Return whether all workers of a model sleep."""
    engine: Engine = request.app.state.engine
    facts = await engine.models.get(request.query_params.get("model"))
    return json_response(IsSleeping(facts.asleep))


async def _change(request: Request, action: Sleep | WakeUp) -> Response:
    engine: Engine = request.app.state.engine
    model = (await engine.models.get(request.query_params.get("model"))).model
    await engine.administer(model, action)
    return json_response(IsSleeping(isinstance(action, Sleep)))
