"""POST /classify, in vLLM's shape."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.documentation.description import describe
from baton_gateway.api.pooling_common import Vector, begin, prompts_of
from baton_gateway.http.body_reader import read
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.pooling import ClassifyRequest
from baton_gateway.schemas.pooling_responses import Classification, Classifications

router = APIRouter()


@router.post("/classify")
@describe(ClassifyRequest, Classifications)
async def create(request: Request) -> Response:
    """Return the label of each text, with the probabilities of all labels."""
    body = await read(request, ClassifyRequest)
    job = await begin(request, body, "classify", "score")
    vectors, usage = await job.run(
        prompts_of(body.input, body.add_special_tokens), "input", job.pooling()
    )
    data = [_classification(i, vector, job.info.labels) for i, vector in enumerate(vectors)]
    return json_response(Classifications(**job.head("classify"), data=data, usage=usage))


def _classification(index: int, probs: Vector, labels: tuple[str, ...]) -> Classification:
    return Classification(index, labels[int(probs.argmax())], probs.tolist(), len(probs))
