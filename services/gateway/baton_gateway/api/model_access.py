"""Checks access to a model."""

from __future__ import annotations

from starlette.requests import Request

from baton_gateway.catalogue import ModelInfo
from baton_gateway.engine import Engine
from baton_gateway.generation.admission import no_model
from baton_gateway.http.middleware import quota_of


async def permitted(request: Request, model: str | None, *, on_demand: bool = True) -> ModelInfo:
    """Return the model of this name; None means the only one. With `on_demand`, an adapter is
    loaded where the operator allows it. Raises `NotFound` if there is no such model, or the key
    does not permit it."""
    engine: Engine = request.app.state.engine
    if on_demand and model is not None and quota_of(request).key.permits(model):
        await engine.adapters.resolve(model)
    model_info = await engine.models.get(model)
    if not quota_of(request).key.permits(model_info.name):
        raise no_model(model_info.name)
    return model_info
