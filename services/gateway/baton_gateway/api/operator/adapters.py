"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, for operators, in vLLM's shape"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from baton.errors import InvalidRequest, NotFound
from baton.protocol import LoadAdapter, UnloadAdapter
from baton_gateway.api.documentation.description import describe
from baton_gateway.engine import Engine
from baton_gateway.http.body_reader import read
from baton_gateway.schemas.operator.adapters import LoadAdapterRequest, UnloadAdapterRequest

router = APIRouter()


@router.post("/v1/load_lora_adapter")
@describe(LoadAdapterRequest, media_type="text/plain")
async def load_lora_adapter(request: Request) -> Response:
    """Load an adapter on every worker of its model, without pausing any stream."""
    engine = _engine(request)
    body = await read(request, LoadAdapterRequest)
    model = (await engine.models.get(body.base_model_name)).model
    if body.lora_name in engine.models.catalogue.models:
        raise InvalidRequest(
            f"`{body.lora_name}` is the name of a model: choose another one.", param="lora_name"
        )
    await engine.administration.load_adapter(
        model, LoadAdapter(body.lora_name, body.lora_path, body.load_inplace)
    )
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter")
@describe(UnloadAdapterRequest, media_type="text/plain")
async def unload_lora_adapter(request: Request) -> Response:
    """Stop serving an adapter. Requests that use it finish."""
    engine = _engine(request)
    body = await read(request, UnloadAdapterRequest)
    model_info = engine.models.catalogue.get(body.lora_name)
    if model_info is None or model_info.parent is None:
        raise NotFound(
            f"There is no adapter `{body.lora_name}`. GET /v1/models lists those there are.",
            param="lora_name",
        )
    await engine.administration.unload_adapter(model_info.parent, UnloadAdapter(body.lora_name))
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _engine(request: Request) -> Engine:
    """Return the engine. Raises `NotFound` if adapters cannot be loaded at run time."""
    engine: Engine = request.app.state.engine
    if not engine.config.allow_runtime_lora_updating:
        raise NotFound(
            "Adapters are not loaded at run time here: the operator can set "
            "--allow-runtime-lora-updating."
        )
    return engine
