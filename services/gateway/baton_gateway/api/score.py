"""POST /score and /v1/score, in vLLM's format."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.documentation.description import describe
from baton_gateway.api.pooling_common import (
    Job,
    Vector,
    begin,
    pairs_of,
)
from baton_gateway.generation.pair_prompt import Content, single_prompt
from baton_gateway.http.body_reader import read
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.pooling import ScoreRequest
from baton_gateway.schemas.pooling_responses import PooledUsage, Score, Scores

router = APIRouter()


@router.post("/score")
@router.post("/v1/score")
@describe(ScoreRequest, Scores)
async def create(request: Request) -> Response:
    """Return one score per pair of a query and a document."""
    body = await read(request, ScoreRequest)
    job = await begin(request, body, "score", "embed")
    scores, usage = await compare(job, body.pairs, "text_2")
    data = [Score(i, score) for i, score in enumerate(scores)]
    return json_response(Scores(**job.head("score"), data=data, usage=usage))


async def compare(
    job: Job, pairs: Sequence[tuple[Content, Content]], param: str
) -> tuple[list[float], PooledUsage]:
    """Return one score per pair: the cross-encoder's score, or the cosine of two embeddings."""
    if job.info.task == "score":
        vectors, usage = await job.run(pairs_of(pairs, job.model_info), param, job.pooling())
        return [float(vector[0]) for vector in vectors], usage
    prompts = [(single_prompt(first), single_prompt(second)) for first, second in pairs]
    distinct = list(dict.fromkeys(prompt for pair in prompts for prompt in pair))
    vectors, usage = await job.run(distinct, param, job.pooling())
    vector_of = dict(zip(distinct, vectors, strict=True))
    return [cosine(vector_of[first], vector_of[second]) for first, second in prompts], usage


def cosine(first: Vector, second: Vector) -> float:
    """Return the cosine of two vectors; 0 when one of them is zero."""
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0
