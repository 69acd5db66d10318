"""POST /v1/messages and /v1/messages/count_tokens

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api import chat
from baton_gateway.api.answer import answer
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.api.prompts.tokenize import encoded
from baton_gateway.engine import Engine
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.http.body_reader import read
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.anthropic.output_config import FORMAT
from baton_gateway.schemas.anthropic.request import CountTokensRequest, MessagesRequest
from baton_gateway.schemas.anthropic.response import InputTokens, Message, MessageEvent
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.message_writer import MessageWriter

router = APIRouter()


@router.post("/v1/messages")
@describe(MessagesRequest, Message, events=MessageEvent)
async def create(request: Request) -> Response:
    """Continue a conversation, streamed or not."""
    return await answer(request, ROUTE)


@router.post("/v1/messages/count_tokens")
@describe(CountTokensRequest, InputTokens)
async def count_tokens(request: Request) -> Response:
    """Return the number of tokens of a prompt, without generating."""
    body = await read(request, CountTokensRequest)
    model_info = await permitted(request, body.model)
    ids = await encoded(request, model_info, chat.prompt_of(body.chat), "messages")
    return json_response(InputTokens(len(ids)))


async def _writer(engine: Engine, body: ChatRequest, head: Head) -> MessageWriter:
    return MessageWriter(head)


def _generation(request: Request, body: ChatRequest, head: Head) -> GenerationRequest:
    """As for a chat, but a thinking budget is a target where it cannot be enforced."""
    work = chat.ROUTE.generation(request, body, head)
    assert work.tools is not None
    sampling, constraint = work.sampling, work.sampling.constraint
    if constraint is not None:
        sampling = replace(sampling, constraint=replace(constraint, param=FORMAT))
    return replace(work, tools=replace(work.tools, budget_is_target=True), sampling=sampling)


def _chat(body: MessagesRequest) -> ChatRequest:
    return body.chat


ROUTE = replace(
    chat.ROUTE,
    name="messages",
    id_prefix="msg_",
    schema=MessagesRequest,
    convert=_chat,
    generation=_generation,
    writer=_writer,
    named_events=True,
)
