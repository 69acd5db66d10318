"""POST /v1/embeddings

https://platform.openai.com/docs/api-reference/embeddings
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.api.pooling_common import (
    asked_of,
    begin,
    check_dimensions,
    written,
)
from baton_gateway.api.resumption.idempotency import (
    check_same,
    idempotency_key,
    keyed_head,
    keyed_owner,
    mark,
)
from baton_gateway.durable.journal import StreamRecord
from baton_gateway.durable.streams import DurableStreams
from baton_gateway.http.body_reader import read
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.pooling import EmbeddingRequest
from baton_gateway.schemas.pooling_responses import Embedding, Embeddings

router = APIRouter()


@router.post("/v1/embeddings")
@describe(EmbeddingRequest, Embeddings)
async def create(request: Request) -> Response:
    """Return one vector per text, or the vector of an image."""
    body = await read(request, EmbeddingRequest)
    key = idempotency_key(request)
    if key is None:
        return json_response(await _embeddings(request, body))
    return await _keyed(request, body, key)


async def _embeddings(request: Request, body: EmbeddingRequest) -> Embeddings:
    job = await begin(request, body, "embed")
    check_dimensions(body.dimensions, job.info)
    vectors, usage = await job.run(asked_of(body), body.param, job.pooling(body.dimensions))
    data = [Embedding(i, written(v, body.encoding_format)) for i, v in enumerate(vectors)]
    return Embeddings(data, body.model, usage)


async def _keyed(request: Request, body: EmbeddingRequest, key: str) -> Response:
    """Return the stored response of this key; the journal has all of it."""

    async def work() -> bytes:
        return msgspec.json.encode(await _embeddings(request, body))

    await permitted(request, body.model)
    head = keyed_head(request, "embd-", "embeddings", body.model, key)
    record = StreamRecord(
        id=head.id,
        route="embeddings",
        body=request.state.body,
        created=head.created,
        model=head.model,
        owner=keyed_owner(request),
        tenant=tenant_of(request),
        seed=0,
        prompts=(),
    )
    streams: DurableStreams = request.app.state.streams
    first, answer, replayed = await streams.result_once(record, work)
    check_same(request, first.body)
    return mark(Response(answer, media_type="application/json"), replayed=replayed)
