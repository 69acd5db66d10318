"""POST /v1/chat/completions/batch, in vLLM's format: the answers to several conversations, each as
if it had been requested alone."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from msgspec import UNSET, structs
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api import chat
from baton_gateway.api.collect_answer import collect_all
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.generation.request import ChatPrompt, GenerationRequest, Prompt, RequestSinks
from baton_gateway.http.body_reader import read
from baton_gateway.http.errors import array_too_long
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.batches.chat_batch import ChatBatchRequest
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.chat_responses import ChatCompletion
from baton_gateway.schemas.sampling_defaults import with_defaults
from baton_gateway.streaming.head import Head

router = APIRouter()


@router.post("/v1/chat/completions/batch")
@describe(ChatBatchRequest, ChatCompletion)
async def create(request: Request) -> Response:
    """Complete several conversations; choice i is the answer to conversation i."""
    body = await read(request, ChatBatchRequest)
    config: Config = request.app.state.config
    if len(body.messages) > config.max_choices:
        raise array_too_long("messages", config.max_choices)
    model_info = await permitted(request, body.model)
    body = with_defaults(body, model_info.sampling_defaults)
    head = Head.of(request, chat.ROUTE.id_prefix, body.model)
    works = [_generation(request, one, head, i) for i, one in enumerate(body.chats)]
    answers = await collect_all(request, works)
    starts = [started for started, _ in answers]
    started = replace(starts[0], prompts=tuple(p for one in starts for p in one.prompts))
    engine: Engine = request.app.state.engine
    writer = await chat.ROUTE.writer(engine, body, head)
    completion: ChatCompletion = writer.response(started, [c for _, own in answers for c in own])
    completion.prompt_token_ids = UNSET  # Those of one conversation would not say which.
    return works[0].sinks.admission_headers.apply(json_response(completion))


def _generation(request: Request, body: ChatRequest, head: Head, index: int) -> GenerationRequest:
    """Return the generation of one conversation. The first one reports for all."""
    work = chat.ROUTE.generation(request, body, head)
    identity = replace(work.identity, id=f"{work.identity.id}-{index}")
    prompts = tuple(_placed(prompt, index) for prompt in work.prompts)
    sinks = work.sinks if index == 0 else RequestSinks()
    return replace(work, identity=identity, prompts=prompts, sinks=sinks)


def _placed(prompt: Prompt, index: int) -> Prompt:
    """Return the prompt with errors of media attributed to its conversation."""
    assert isinstance(prompt, ChatPrompt)
    own = f"messages[{index}]"
    media = (
        structs.replace(item, param=own + item.param.removeprefix("messages"))
        for item in prompt.media
    )
    return replace(prompt, media=tuple(media))
