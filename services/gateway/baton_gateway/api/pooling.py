"""POST /pooling, in vLLM's format: the model's output for each text."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.documentation.description import describe
from baton_gateway.api.pooling_common import (
    asked_of,
    begin,
    check_dimensions,
    written,
)
from baton_gateway.http.body_reader import read
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.pooling import PoolingRequest
from baton_gateway.schemas.pooling_responses import PooledData, PooledList

router = APIRouter()


@router.post("/pooling")
@describe(PoolingRequest, PooledList)
async def create(request: Request) -> Response:
    """Return a vector or the scores of each text; one row per step for process reward models."""
    body = await read(request, PoolingRequest)
    job = await begin(request, body)
    check_dimensions(body.dimensions, job.info)
    vectors, usage = await job.run(asked_of(body), body.param, job.pooling(body.dimensions))
    rows = job.info.width if job.info.steps else 0
    data = [
        PooledData(i, written(vector, body.encoding_format, rows))
        for i, vector in enumerate(vectors)
    ]
    return json_response(PooledList(**job.head("pool"), data=data, usage=usage))
