"""GET /v1/requests/{id}/explain: latency breakdown of a request."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import NotFound
from baton_gateway.api.documentation.description import describe
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import tenant_of
from baton_gateway.observability.latency_explanation import LatencyExplanation

router = APIRouter()


@router.get("/v1/requests/{name}/explain")
@describe(answer=LatencyExplanation)
async def explain(request: Request, name: str) -> Response:
    """Return the breakdown of a recent request of the same tenant, by its X-Request-Id or response
    id."""
    engine: Engine = request.app.state.engine
    account = engine.timelines.find(name, tenant_of(request))
    if account is None:
        raise NotFound(
            "There is no such request, or it is not one of the latest that this gateway has served "
            "for you.",
            code="request_not_found",
        )
    return json_response(account.explain())
