"""POST /v2/embed, in Cohere's format.

https://docs.cohere.com/reference/embed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.protocol import MediaItem
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.pooling_common import (
    Job,
    Vector,
    begin,
    check_dimensions,
    written,
)
from baton_gateway.generation.pair_prompt import Content, single_prompt
from baton_gateway.generation.request import Prompt
from baton_gateway.http.body_reader import read
from baton_gateway.http.errors import invalid
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.cohere_embed import (
    BilledUnits,
    CohereEmbeddings,
    CohereEmbedRequest,
    EmbeddingsByType,
    EmbedMeta,
)

router = APIRouter()


@router.post("/v2/embed")
@describe(CohereEmbedRequest, CohereEmbeddings)
async def create(request: Request) -> Response:
    """Return the vectors of texts or images, in each requested type."""
    body = await read(request, CohereEmbedRequest)
    job = await begin(request, body, "embed")
    check_dimensions(body.output_dimension, job.info, "output_dimension")
    _check_bits(body, body.output_dimension or job.info.width)
    pooling = job.pooling(body.output_dimension)
    vectors, usage = await job.run(_prompts(body, job), body.param, pooling)
    return json_response(
        CohereEmbeddings(
            job.head("embd")["id"],
            _by_type(vectors, body),
            [text for text in body.contents if isinstance(text, str)],
            EmbedMeta(BilledUnits(usage.prompt_tokens)),
        )
    )


def _prompts(body: CohereEmbedRequest, job: Job) -> list[Prompt]:
    prompts = job.model_info.task_prompts
    before = next((prompts[name] for name in body.prompt_names if name in prompts), "")
    most = min(body.max_tokens or job.model_info.max_model_len, job.model_info.max_model_len)
    keep = 0 if body.truncate == "NONE" else most
    return [_prompt(content, before, keep) for content in body.contents]


def _prompt(content: Content | MediaItem, before: str, keep: int) -> Prompt:
    prompt = content if isinstance(content, MediaItem) else single_prompt(content)
    if isinstance(prompt, MediaItem):
        return prompt
    return replace(prompt, text=before + prompt.text, keep=keep)


def _check_bits(body: CohereEmbedRequest, width: int) -> None:
    """Raise `InvalidRequest` if the bits of a vector do not fill bytes."""
    if width % 8 and {"binary", "ubinary"} & {*body.embedding_types}:
        raise invalid(
            "embedding_types",
            f"Unsupported value: vectors of {width} numbers have no 'binary' form, whose bits fill "
            "bytes. Ask for 'float'.",
            "unsupported_value",
        )


def _by_type(vectors: Sequence[Vector], body: CohereEmbedRequest) -> EmbeddingsByType:
    bits = [np.packbits(vector >= 0) for vector in vectors]
    types = body.embedding_types
    return EmbeddingsByType(
        floats=[vector.tolist() for vector in vectors] if "float" in types else None,
        base64=[str(written(vector, "base64")) for vector in vectors]
        if "base64" in types
        else None,
        binary=[(row.astype(np.int16) - 128).tolist() for row in bits]
        if "binary" in types
        else None,
        ubinary=[row.tolist() for row in bits] if "ubinary" in types else None,
    )
