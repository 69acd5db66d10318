"""POST /v1/chat/completions/render and others: the prompt of a request as the model gets it.

The body is that of the request itself, so the result is exactly the prompt of that request.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api import chat, completions
from baton_gateway.api.anthropic import messages
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.api.options import check_choices
from baton_gateway.api.responses import route as responses
from baton_gateway.api.responses.conversation_state import state_of
from baton_gateway.api.responses.truncation import fitting_chat
from baton_gateway.api.stream_routes import B, StreamRoute
from baton_gateway.engine import Engine
from baton_gateway.generation.admission import clamp_max_tokens
from baton_gateway.generation.request import PreparedRequest
from baton_gateway.generation.sequence_builder import starts
from baton_gateway.http.body_reader import read
from baton_gateway.http.disconnect import cancel_on_disconnect
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.anthropic.request import MessagesRequest
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.completions import CompletionRequest
from baton_gateway.schemas.prompts import RenderedPrompt, RenderResponse
from baton_gateway.schemas.responses.request import ResponsesRequest
from baton_gateway.schemas.sampling_defaults import with_defaults
from baton_gateway.streaming.head import Head

router = APIRouter()


@router.post("/v1/chat/completions/render")
@describe(ChatRequest, RenderResponse)
async def render_chat(request: Request) -> Response:
    """Render a conversation with its tools, without running it."""
    return await _render(request, chat.ROUTE, await read(request, ChatRequest))


@router.post("/v1/completions/render")
@describe(CompletionRequest, RenderResponse)
async def render_completion(request: Request) -> Response:
    """Encode the prompts of a completion, without running it."""
    return await _render(request, completions.ROUTE, await read(request, CompletionRequest))


@router.post("/v1/messages/render")
@describe(MessagesRequest, RenderResponse)
async def render_messages(request: Request) -> Response:
    """Render a conversation of the Messages API, without running it."""
    return await _render(request, messages.ROUTE, (await read(request, MessagesRequest)).chat)


@router.post("/v1/responses/render")
@describe(ResponsesRequest, RenderResponse)
async def render_response(request: Request) -> Response:
    """Render the conversation of a response, without running it."""
    body = await read(request, ResponsesRequest)
    fitting = await fitting_chat(request, body, await state_of(request, body))
    return await _render(request, responses.ROUTE, fitting)


async def prepared(request: Request, route: StreamRoute[B], body: B) -> PreparedRequest:
    """Check and encode a request without running it. Raises what running it would raise."""
    engine: Engine = request.app.state.engine
    check_choices(body, route.num_prompts(body), engine.config)
    model_info = await permitted(request, body.model)
    body = with_defaults(body, model_info.sampling_defaults)
    work = route.generation(request, body, Head.of(request, route.id_prefix, body.model))
    return await cancel_on_disconnect(request.receive, engine.prepare(work))


async def _render(request: Request, route: StreamRoute[B], body: B) -> Response:
    engine: Engine = request.app.state.engine
    work, prompts, model_info = await prepared(request, route, body)
    begins = (
        [None] * len(prompts) if work.tools is None else starts(work.tools, prompts, model_info)
    )
    tokenizers = engine.tokenizers.of(model_info.tokenizer)
    return json_response(
        RenderResponse(
            model_info.name,
            [
                RenderedPrompt(
                    await tokenizers.detokenize(prompt.ids, False),
                    list(prompt.ids),
                    clamp_max_tokens(work, prompt.ids, model_info),
                    start,
                )
                for prompt, start in zip(prompts, begins, strict=True)
            ],
        )
    )
