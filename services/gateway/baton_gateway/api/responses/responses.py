"""POST /v1/responses

https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import BatonError, ServerFault
from baton.logs import logger
from baton_gateway.api import chat
from baton_gateway.api.answer import event_stream, is_durable
from baton_gateway.api.collect_answer import opened, whole
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.api.stream_routes import StreamRoute
from baton_gateway.engine import Engine
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.http.body_reader import read
from baton_gateway.http.errors import FAULT, GatewayPartitioned
from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.responses import response as responses
from baton_gateway.schemas.responses.chat import ResponseChat
from baton_gateway.schemas.responses.events import AnyEvent
from baton_gateway.schemas.responses.request import ResponsesRequest
from baton_gateway.streaming.direct_sink import DirectSink
from baton_gateway.streaming.event_frames import NamedFrames
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.response_transcript import ResponseTranscript
from baton_gateway.streaming.response_writer import ResponseWriter
from baton_gateway.streaming.writer import payloads

router = APIRouter()
log = logger(__name__)


@router.post("/v1/responses")
@describe(ResponsesRequest, responses.Response, events=AnyEvent)
async def create(request: Request) -> Response:
    """Answer a conversation, whole or streamed."""
    body = (await read(request, ResponsesRequest)).chat
    engine: Engine = request.app.state.engine
    is_durable(request, body, ROUTE)
    await permitted(request, body.model)
    head = Head.of(request, ROUTE.id_prefix, body.model)
    writer = await _writer(engine, body, head)
    work = ROUTE.generation(request, body, head)
    if body.stream:
        response = await _stream(request, work, writer)
    else:
        response = json_response(writer.whole(*await whole(request, work)))
    return work.sinks.admission_headers.apply(response)


async def _stream(request: Request, work: GenerationRequest, writer: ResponseWriter) -> Response:
    engine: Engine = request.app.state.engine
    transcript, frames = writer.transcript(), NamedFrames()
    sink = DirectSink.of(request.scope, engine.write_batch, transcript, frames)
    events = payloads(transcript, *await opened(request, work, sink))
    return event_stream(request, ended(events, transcript), frames, done=False, sink=sink)


async def ended(
    payloads: AsyncGenerator[bytes, None], transcript: ResponseTranscript
) -> AsyncGenerator[bytes, None]:
    """Yield the payloads of a stream; an error becomes its last one. Closing it closes
    `payloads`."""
    try:
        async for payload in payloads:
            yield payload
    except GatewayPartitioned:
        raise
    except BatonError as error:
        yield transcript.failed(error)
    except Exception:
        log.exception("a response broke off")
        yield transcript.failed(ServerFault(FAULT))
    finally:
        await payloads.aclose()


async def _writer(engine: Engine, body: ResponseChat, head: Head) -> ResponseWriter:
    asked = Vocabulary(())
    if body.logprobs:
        asked = await engine.models.vocabulary(head.model)
    return ResponseWriter(body, head, asked)


def _generation(request: Request, body: ResponseChat, head: Head) -> GenerationRequest:
    return replace(chat.ROUTE.generation(request, body, head), param="input")


ROUTE = StreamRoute(
    name="responses",
    id_prefix="resp_",
    schema=ResponseChat,
    num_prompts=lambda body: 1,
    generation=_generation,
    writer=_writer,
    named_events=True,
)
