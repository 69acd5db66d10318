"""POST /start_profile and /stop_profile, for operators, in vLLM's shape"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.protocol import StartProfile, StopProfile
from baton_gateway.api.documentation.description import describe
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response

router = APIRouter()


class ProfileStatus(msgspec.Struct):
    """Response of both endpoints."""

    status: str


@router.post("/start_profile")
@describe(answer=ProfileStatus)
async def start_profile(request: Request) -> Response:
    """Profile all workers of a model, as configured by `--profiler-config`."""
    return await _profile(request, StartProfile(), "profiling")


@router.post("/stop_profile")
@describe(answer=ProfileStatus)
async def stop_profile(request: Request) -> Response:
    """Stop profiling. Returns once every worker has written its trace."""
    return await _profile(request, StopProfile(), "stopped")


async def _profile(request: Request, action: StartProfile | StopProfile, status: str) -> Response:
    engine: Engine = request.app.state.engine
    model_info = await engine.models.get(request.query_params.get("model"))
    await engine.administration.profile(model_info.model, action)
    return json_response(ProfileStatus(status))
