"""POST /v1/chat/completions

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.answer import answer
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.options import requested, sampling
from baton_gateway.api.stream_routes import StreamRoute
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.generation.chat_prompt import chat_prompt
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.request import ChatPrompt, GenerationRequest
from baton_gateway.output_formats import ToolOptions
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.chat_responses import ChatChunk, ChatCompletion
from baton_gateway.schemas.tools import chosen
from baton_gateway.streaming.chat_writer import ChatWriter
from baton_gateway.streaming.head import Head

router = APIRouter()


@router.post("/v1/chat/completions")
@describe(ChatRequest, ChatCompletion, events=ChatChunk)
async def create(request: Request) -> Response:
    """Complete a conversation, streamed or not."""
    return await answer(request, ROUTE)


async def _writer(engine: Engine, body: ChatRequest, head: Head) -> ChatWriter:
    needs_vocabulary = body.logprobs or body.prompt_logprobs is not None
    vocabulary = Vocabulary(())
    if needs_vocabulary:
        as_ids = body.return_tokens_as_token_ids
        vocabulary = await engine.models.vocabulary(head.model, as_ids=as_ids)
    return ChatWriter(body, head, vocabulary)


def _generation(request: Request, body: ChatRequest, head: Head) -> GenerationRequest:
    config: Config = request.app.state.config
    prompt_logprobs = -1 if body.prompt_logprobs is None else body.prompt_logprobs
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    how = sampling(body, config, logprobs, prompt_logprobs)
    work = requested(
        request,
        body,
        head,
        (prompt_of(body),),
        how,
        param="messages",
        max_tokens=body.limit,
        n=body.n,
    )
    predicted = body.prediction.text if body.prediction else ""
    return replace(work, tools=_tools(body), predicted_text=predicted)


def prompt_of(body: ChatRequest) -> ChatPrompt:
    """Return the conversation of a request."""
    return chat_prompt(
        body.messages,
        body.tools,
        body.template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        sound=body.sound,
    )


def _tools(body: ChatRequest) -> ToolOptions:
    return ToolOptions(
        tools=tuple(body.tools),
        choice=chosen(body.tool_choice, body.tools),
        parallel=body.parallel_tool_calls,
        constrained=body.constraint is not None,
        thinking_budget=body.thinking_token_budget,
    )


ROUTE = StreamRoute(
    name="chat",
    id_prefix="chatcmpl-",
    schema=ChatRequest,
    num_prompts=lambda body: 1,
    generation=_generation,
    writer=_writer,
)
