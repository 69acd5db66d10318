"""POST /v1/quote: estimated time and tokens of a chat or completion, without running it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api import chat, completions
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.prompts.render import prepared
from baton_gateway.engine import Engine
from baton_gateway.generation.admission import clamp_max_tokens
from baton_gateway.generation.request import PreparedRequest
from baton_gateway.http.body import build
from baton_gateway.http.body_reader import read_object
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.completions import CompletionRequest
from baton_gateway.schemas.prompts import QuoteRequest, QuoteResponse

router = APIRouter()


@router.post("/v1/quote")
@describe(QuoteRequest, QuoteResponse)
async def create(request: Request) -> Response:
    """Estimate a request; its body is that of a chat or a completion."""
    body, config = await read_object(request), request.app.state.config
    strict = config.strict_fields
    if "messages" in body:
        chatted = build(body, ChatRequest, strict=strict)
        work = await prepared(request, chat.ROUTE, chatted)
    else:
        completed = build(body, CompletionRequest, strict=strict)
        work = await prepared(request, completions.ROUTE, completed)
    return json_response(_quote(work, request.app.state.engine))


def _quote(work: PreparedRequest, engine: Engine) -> QuoteResponse:
    request, prompts, model_info = work
    n = max(request.sampling.n, request.sampling.beams.width if request.sampling.beams else 0)
    rooms = [clamp_max_tokens(request, prompt.ids, model_info) for prompt in prompts]
    tokens = sum(len(prompt.ids) for prompt in prompts)
    took = engine.estimate(model_info.model, tokens, max(rooms))
    return QuoteResponse(
        model=model_info.name,
        prompt_tokens=tokens,
        max_completion_tokens=n * sum(rooms),
        queue_position=took.queue_position,
        queue_ms=took.queue_ms,
        prefill_ms=took.prefill_ms,
        decode_ms=took.decode_ms,
        total_ms=took.total_ms,
    )
