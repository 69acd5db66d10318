"""POST /rerank and /v1/rerank in Jina's format, /v2/rerank in Cohere's.

https://api.jina.ai/redoc and https://docs.cohere.com/reference/rerank
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.documentation.description import describe
from baton_gateway.api.pooling_common import Job, begin
from baton_gateway.api.score import compare
from baton_gateway.generation.pair_prompt import Content
from baton_gateway.http.body_reader import read
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.pooling import RerankRequest
from baton_gateway.schemas.pooling_responses import (
    CohereRanking,
    Document,
    PooledUsage,
    Ranked,
    Ranking,
)

router = APIRouter()


@router.post("/rerank")
@router.post("/v1/rerank")
@describe(RerankRequest, Ranking)
async def jina(request: Request) -> Response:
    """Return the documents in descending order of relevance."""
    body = await read(request, RerankRequest)
    job = await begin(request, body, "score", "embed")
    ranked, usage = await _ranked(job, body, documents=body.return_documents)
    head = job.head("rerank")
    return json_response(Ranking(head["id"], head["model"], usage, ranked))


@router.post("/v2/rerank")
@describe(RerankRequest, CohereRanking)
async def cohere(request: Request) -> Response:
    """Return the indices of the documents in descending order of relevance."""
    body = await read(request, RerankRequest)
    job = await begin(request, body, "score", "embed")
    ranked, _ = await _ranked(job, body, documents=False)
    return json_response(CohereRanking(job.head("rerank")["id"], ranked))


async def _ranked(
    job: Job, body: RerankRequest, *, documents: bool
) -> tuple[list[Ranked], PooledUsage]:
    pairs = [(body.query, document) for document in body.documents]
    scores, usage = await compare(job, pairs, "documents")
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n]
    shown = [_shown(item) if documents else None for item in body.documents]
    return [Ranked(i, scores[i], shown[i]) for i in order], usage


def _shown(document: Content) -> Document:
    """A document in the format in which the client sent it."""
    if isinstance(document, str):
        return Document(document)
    return Document(multi_modal=document.original)
