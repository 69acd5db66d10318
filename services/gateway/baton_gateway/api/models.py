"""GET /v1/models and /v1/models/{id}"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.catalogue import ModelInfo
from baton_gateway.engine import Engine
from baton_gateway.http.error_formats import ANTHROPIC_VERSION
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import quota_of
from baton_gateway.schemas.anthropic.models import AnthropicModel, AnthropicModels

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


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models")
@describe(answer=Models)
async def models(request: Request) -> Response:
    """List the served models that are permitted for the API key."""
    engine: Engine = request.app.state.engine
    key = quota_of(request).key
    models = [
        model_info for model_info in await engine.models.all() if key.permits(model_info.name)
    ]
    if ANTHROPIC_VERSION in request.headers:
        data = [_anthropic_entry(model_info) for model_info in models]
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return json_response(AnthropicModels(data=data, first_id=first, last_id=last))
    return json_response(Models([_entry(model_info) for model_info in models]))


@router.head("/v1/models/{name:path}", include_in_schema=False)
@router.get("/v1/models/{name:path}")
@describe(answer=Model)
async def model(request: Request, name: str) -> Response:
    """Return one of them by name."""
    model_info = await permitted(request, name, on_demand=False)
    entry = _anthropic_entry if ANTHROPIC_VERSION in request.headers else _entry
    return json_response(entry(model_info))


def _entry(model_info: ModelInfo) -> Model:
    return Model(model_info.name, model_info.max_model_len or None, model_info.parent)


def _anthropic_entry(model_info: ModelInfo) -> AnthropicModel:
    since, length = datetime.fromtimestamp(_SINCE, UTC), model_info.max_model_len or None
    return AnthropicModel(model_info.name, model_info.name, since.isoformat(), length, length)
