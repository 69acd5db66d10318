"""POST /tokenize and /detokenize, in vLLM's shape."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.catalogue import ModelInfo
from baton_gateway.engine import Engine
from baton_gateway.generation.admission import check_media, check_prompt_ids
from baton_gateway.generation.chat_prompt import chat_prompt
from baton_gateway.generation.placeholders import expand
from baton_gateway.generation.request import ChatPrompt, TextPrompt
from baton_gateway.http.body_reader import read
from baton_gateway.http.disconnect import cancel_on_disconnect
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)

router = APIRouter()
_LONGEST = 32768
"""Tokens that are always counted; beyond it, text of up to four contexts."""


@router.post("/tokenize")
@describe(TokenizeRequest, TokenizeResponse)
async def tokenize(request: Request) -> Response:
    """Ids of a text or of a conversation."""
    body = await read(request, TokenizeRequest)
    engine: Engine = request.app.state.engine
    model_info = await permitted(request, body.model)
    param = "prompt" if body.messages is None else "messages"
    ids = await encoded(request, model_info, _prompt(body), param)
    names = None
    if body.return_token_strs:
        vocabulary = await engine.models.vocabulary(model_info.name)
        names = [vocabulary.text(token) for token in ids]
    return json_response(TokenizeResponse(len(ids), model_info.max_model_len, list(ids), names))


async def encoded(
    request: Request, model_info: ModelInfo, prompt: ChatPrompt | TextPrompt, param: str
) -> PackedTokens:
    """Return the ids of a prompt that is only counted, so it may exceed the context.

    Raises `InvalidRequest` with `param` when it is far longer.
    """
    engine: Engine = request.app.state.engine
    limit = max(_LONGEST, 4 * model_info.max_model_len)
    encode = engine.tokenizers.of(model_info.tokenizer).encode(prompt, limit)
    ids = await cancel_on_disconnect(request.receive, encode)
    if len(ids) > limit:
        raise InvalidRequest(
            f"The text has more than {limit} tokens. Send it in parts.",
            code="request_too_large",
            param=param,
        )
    if isinstance(prompt, ChatPrompt) and prompt.media:
        check_media(prompt.media, model_info)
        prepare = engine.preprocessors.prepare(
            prompt.media, model_info.model, owner=tenant_of(request)
        )
        ids, _ = expand(ids, await cancel_on_disconnect(request.receive, prepare))
    return ids


def _prompt(body: TokenizeRequest) -> ChatPrompt | TextPrompt:
    if body.messages is None:
        return TextPrompt(body.prompt or "", body.add_special_tokens)
    return chat_prompt(
        body.messages,
        body.tools,
        body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        sound=body.sound,
    )


@router.post("/detokenize")
@describe(DetokenizeRequest, DetokenizeResponse)
async def detokenize(request: Request) -> Response:
    """Text of ids; bytes that are not UTF-8 become replacement characters."""
    body = await read(request, DetokenizeRequest)
    engine: Engine = request.app.state.engine
    model_info = await permitted(request, body.model)
    check_prompt_ids(body.tokens, "tokens", model_info)
    tokenizers = engine.tokenizers.of(model_info.tokenizer)
    decode = tokenizers.detokenize(body.tokens, body.skip_special_tokens)
    return json_response(DetokenizeResponse(await cancel_on_disconnect(request.receive, decode)))
