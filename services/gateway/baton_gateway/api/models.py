"""GET /v1/models and /v1/models/{id}"""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.catalogue import ModelInfo
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import quota_of

router = APIRouter()
_SINCE = int(time.time())


class Model(msgspec.Struct):
    """One entry of the list; `max_model_len` is null until a worker has reported it."""

    id: str
    max_model_len: int | None
    parent: str | None = None
    """The model that an adapter is applied to; null for a model itself."""
    created: int = _SINCE
    owned_by: str = "baton"
    object: Literal["model"] = "model"


class Models(msgspec.Struct):
    """Response of /v1/models."""

    data: list[Model]
    object: Literal["list"] = "list"


@router.get("/v1/models")
@describe(answer=Models)
async def models(request: Request) -> Response:
    """List the served models that are permitted for the API key."""
    engine: Engine = request.app.state.engine
    key = quota_of(request).key
    return json_response(
        Models([_entry(facts) for facts in await engine.models.all() if key.permits(facts.name)])
    )


@router.get("/v1/models/{name:path}")
@describe(answer=Model)
async def model(request: Request, name: str) -> Response:
    """Return one of them by name."""
    return json_response(_entry(await permitted(request, name)))


def _entry(facts: ModelInfo) -> Model:
    return Model(facts.name, facts.max_model_len or None, facts.parent)
