"""POST /start_weight_update, /update_weights and /finish_weight_update, GET /weight_version, in
vLLM's shape"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest, NotFound
from baton.protocol import FinishWeightUpdate, StartWeightUpdate, UpdateWeights
from baton_gateway.api.documentation.description import describe
from baton_gateway.config import weight_backend
from baton_gateway.engine import Engine
from baton_gateway.http.body import build
from baton_gateway.http.body_reader import read
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.operator.weight_updates import (
    BroadcastUpdate,
    FileUpdate,
    FinishWeightUpdateRequest,
    GroupInit,
    InitWeightTransferRequest,
    SharedMemoryUpdate,
    UpdateWeightsRequest,
)

router = APIRouter()
_UPDATES: dict[str, type[FileUpdate | SharedMemoryUpdate | BroadcastUpdate]] = {
    "files": FileUpdate,
    "shared_memory": SharedMemoryUpdate,
    "gloo": BroadcastUpdate,
}


class WeightUpdateStatus(msgspec.Struct):
    """Response of the three steps of an update."""

    message: str


class WeightVersionStatus(msgspec.Struct):
    """Response of /weight_version."""

    weight_version: str


@router.post("/init_weight_transfer_engine")
@describe(InitWeightTransferRequest, WeightUpdateStatus)
async def init_weight_transfer_engine(request: Request) -> Response:
    """Set up a channel with a trainer. With `gloo` every worker joins a process group; files and
    shared memory need nothing."""
    engine = _engine(request)
    body = await read(request, InitWeightTransferRequest)
    if weight_backend(engine.config.weight_transfer_config) == "gloo":
        init = build(body.init_info, GroupInit, strict=True)
        await engine.administration.change_weights(await _model(request), init.action())
    return json_response(WeightUpdateStatus("Weight transfer initialized"))


@router.post("/start_weight_update")
@describe(answer=WeightUpdateStatus)
async def start_weight_update(request: Request) -> Response:
    """Begin to send new weights of a model. Weights sent by an unfinished update are discarded."""
    engine, model = _engine(request), await _model(request)
    await engine.administration.change_weights(model, StartWeightUpdate())
    return json_response(WeightUpdateStatus("Weight update started"))


@router.post("/update_weights")
@describe(UpdateWeightsRequest, WeightUpdateStatus)
async def update_weights(request: Request) -> Response:
    """Send some or all of the new weights. Returns once every worker has read them; they are not in
    use yet."""
    engine = _engine(request)
    body, model = await read(request, UpdateWeightsRequest), await _model(request)
    kind = _UPDATES[weight_backend(engine.config.weight_transfer_config)]
    update = build(body.update_info, kind, strict=True)
    await engine.administration.change_weights(model, UpdateWeights(update.transfer()))
    return json_response(WeightUpdateStatus("Weights updated"))


@router.post("/finish_weight_update")
@describe(FinishWeightUpdateRequest, WeightUpdateStatus)
async def finish_weight_update(request: Request) -> Response:
    """Switch to the new weights: every worker loads and tries them next to the old ones, then all
    switch between two steps. If one cannot, the old weights stay and the response has the
    reason."""
    engine = _engine(request)
    body = await read(request, FinishWeightUpdateRequest) if await request.body() else None
    body = body or FinishWeightUpdateRequest()
    action = FinishWeightUpdate(body.weight_version or "", body.mode)
    await engine.administration.change_weights(await _model(request), action)
    return json_response(WeightUpdateStatus("Weight update finished"))


@router.get("/weight_version")
@router.get("/weight_info")
@describe(answer=WeightVersionStatus)
async def weight_version(request: Request) -> Response:
    """Return the version of the weights of a model."""
    engine: Engine = request.app.state.engine
    model_info = await engine.models.get(request.query_params.get("model"))
    return json_response(WeightVersionStatus(model_info.weight_version))


async def _model(request: Request) -> str:
    """The model of ?model=, by default the only one."""
    engine: Engine = request.app.state.engine
    model_info = await engine.models.get(request.query_params.get("model"))
    if model_info.parent is not None:
        raise InvalidRequest(f"`{model_info.name}` is an adapter: name the model.", param="model")
    return model_info.model


def _engine(request: Request) -> Engine:
    """Return the engine. Raises `NotFound` if weight updates are disabled."""
    engine: Engine = request.app.state.engine
    if not engine.config.weight_transfer_config:
        raise NotFound(
            "Weights do not change while the model serves here: the operator can set "
            """--weight-transfer-config '{"backend": "files"}', "shared_memory" or "gloo"."""
        )
    return engine
