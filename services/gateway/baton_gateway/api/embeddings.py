"""POST /v1/embeddings

https://platform.openai.com/docs/api-reference/embeddings
"""

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
from baton_gateway.schemas.pooling import EmbeddingRequest
from baton_gateway.schemas.pooling_responses import Embedding, Embeddings

router = APIRouter()


@router.post("/v1/embeddings")
@describe(EmbeddingRequest, Embeddings)
async def create(request: Request) -> Response:
    """Return one vector per text, or the vector of an image."""
    body = await read(request, EmbeddingRequest)
    job = await begin(request, body, "embed")
    check_dimensions(body.dimensions, job.info)
    vectors, usage = await job.run(asked_of(body), body.param, job.pooling(body.dimensions))
    data = [Embedding(i, written(v, body.encoding_format)) for i, v in enumerate(vectors)]
    return json_response(Embeddings(data, body.model, usage))
