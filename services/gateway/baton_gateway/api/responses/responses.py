"""/v1/responses: create, retrieve, stream again, cancel, delete, list the input.

https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import BatonError, InvalidRequest, NotFound, ServerFault, Unavailable
from baton.logs import logger
from baton_gateway.access.reasoning_cipher import cipher_of
from baton_gateway.api import chat
from baton_gateway.api.answer import event_stream, is_durable
from baton_gateway.api.collect_answer import begun, opened, whole
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.api.recorded.continuation import started_of, writer_of
from baton_gateway.api.responses.background import BackgroundResponses
from baton_gateway.api.responses.conversation_state import ConversationState, state_of
from baton_gateway.api.responses.followed_stream import StreamQuery, followed
from baton_gateway.api.responses.truncation import fitting_chat
from baton_gateway.api.stream_routes import StreamRoute
from baton_gateway.durable.job import JobDetails
from baton_gateway.durable.journal import StreamRecord
from baton_gateway.durable.response_store import ResponseStore, StoredResponse
from baton_gateway.durable.streams import DurableStream, DurableStreams
from baton_gateway.engine import Engine
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import Started
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.http.body import build
from baton_gateway.http.body_reader import read
from baton_gateway.http.errors import FAULT, ErrorResponse, GatewayPartitioned, invalid
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import quota_of, tenant_of
from baton_gateway.schemas.responses import response as responses
from baton_gateway.schemas.responses.chat import ResponseChat
from baton_gateway.schemas.responses.conversation import Deleted
from baton_gateway.schemas.responses.events import AnyEvent
from baton_gateway.schemas.responses.item_list import ItemList, PageQuery, page_of
from baton_gateway.schemas.responses.request import ResponsesRequest, own_name
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
    asked = await read(request, ResponsesRequest)
    engine: Engine = request.app.state.engine
    await permitted(request, asked.model)
    state = await state_of(request, asked)
    body = await fitting_chat(request, asked, state)
    is_durable(request, body, ROUTE)
    head = Head.of(request, ROUTE.id_prefix, body.model)
    writer = await _writer(engine, body, head)
    work = ROUTE.generation(request, body, head)
    if asked.background:
        response = await _begin(request, body, work, writer, state)
    elif body.stream:
        response = await _stream(request, work, writer, state)
    else:
        said = writer.whole(*await whole(request, work))
        await state.keep(said)
        response = json_response(said)
    return work.sinks.admission_headers.apply(response)


@router.post("/v1/responses/compact", include_in_schema=False)
@describe(answer=ErrorResponse)
async def compact() -> Response:
    """Refuse to compact a conversation."""
    raise NotFound("Conversations are not compacted here. Send 'truncation': 'auto'.")


@router.get("/v1/responses/{name}")
@describe(answer=responses.Response)
async def retrieve(request: Request, name: str) -> Response:
    """Return a stored response, or the events of one in the background."""
    query = build(dict(request.query_params), StreamQuery)
    stored = await _stored(request, name)
    if not query.stream:
        return json_response(stored.response)
    if not stored.response["background"]:
        raise invalid("stream", "Only responses in the background can be streamed again.")
    background: BackgroundResponses = request.app.state.background
    stream = await background.stream(name, tenant_of(request))
    if stream is None:
        raise invalid("stream", "The events of this response are gone. Retrieve it without them.")
    writer = await writer_of(request.app, stream.record)
    assert isinstance(writer, ResponseWriter)
    return _followed(request, stream, writer.transcript(), query.starting_after)


@router.post("/v1/responses/{name}/cancel")
@describe(answer=responses.Response)
async def cancel(request: Request, name: str) -> Response:
    """End a response in the background; one that has ended stays as it is."""
    if not (await _stored(request, name)).response["background"]:
        raise InvalidRequest("Only responses in the background can be cancelled.")
    background: BackgroundResponses = request.app.state.background
    return json_response((await background.cancel(name, tenant_of(request))).response)


@router.delete("/v1/responses/{name}")
@describe(answer=Deleted)
async def delete(request: Request, name: str) -> Response:
    """Delete a stored response; one that runs is cancelled."""
    if (await _stored(request, name)).running:
        background: BackgroundResponses = request.app.state.background
        await background.cancel(name, tenant_of(request))
    await ResponseStore(request.app.state.objects).delete(name, tenant_of(request))
    return json_response(Deleted(id=name, object="response"))


@router.get("/v1/responses/{name}/input_items")
@describe(answer=ItemList)
async def input_items(request: Request, name: str) -> Response:
    """List the items that a stored response answers, those of the conversation before included."""
    query = build(dict(request.query_params), PageQuery)
    return json_response(page_of((await _stored(request, name)).input, query))


async def _stored(request: Request, name: str) -> StoredResponse:
    return await ResponseStore(request.app.state.objects).get(name, tenant_of(request))


async def _stream(
    request: Request, work: GenerationRequest, writer: ResponseWriter, state: ConversationState
) -> Response:
    engine: Engine = request.app.state.engine
    transcript, frames = writer.transcript(), NamedFrames()
    sink = DirectSink.of(request.scope, engine.write_batch, transcript, frames)
    events = payloads(transcript, *await opened(request, work, sink))
    kept = ended(events, transcript, state)
    return event_stream(request, kept, frames, done=False, sink=sink)


async def _begin(
    request: Request,
    body: ResponseChat,
    work: GenerationRequest,
    writer: ResponseWriter,
    state: ConversationState,
) -> Response:
    """Begin a response in the background. It is in the journal and in the store before the client
    knows its id."""
    background: BackgroundResponses = request.app.state.background
    streams: DurableStreams = request.app.state.streams
    started, deltas = await begun(request, work)
    stream = await streams.record(_record(request, body, work, writer, started), deltas)
    transcript = writer.transcript()
    await state.keep(transcript.response)
    details = JobDetails(
        stream.record.id, quota_of(request).key.name, state.conversation, len(state.input)
    )
    await background.begin(state.owner, details, stream)
    if body.stream:
        return _followed(request, stream, transcript)
    return json_response(transcript.response)


def _record(
    request: Request,
    body: ResponseChat,
    work: GenerationRequest,
    writer: ResponseWriter,
    started: Started,
) -> StreamRecord:
    return StreamRecord(
        id=writer.head.id,
        route=ROUTE.name,
        body=body.model_dump_json(exclude_unset=True).encode(),
        created=writer.head.created,
        model=writer.head.model,
        owner=tenant_of(request),
        tenant=work.identity.tenant,
        seed=work.sampling.seed,
        prompts=tuple(prompt.column for prompt in started.prompts),
        starts=started.starts,
    )


def _followed(
    request: Request, stream: DurableStream, transcript: ResponseTranscript, after: int = -1
) -> Response:
    events = followed(
        request.app.state.background, stream, transcript, started_of(stream.record), after
    )
    return event_stream(request, events, NamedFrames(), done=False)


async def ended(
    payloads: AsyncGenerator[bytes, None], transcript: ResponseTranscript, state: ConversationState
) -> AsyncGenerator[bytes, None]:
    """Yield the payloads of a stream. The response is kept before its last one, which an error
    becomes too. Closing it closes `payloads`."""
    try:
        async for payload in payloads:
            if transcript.response.status != "in_progress":
                await state.keep(transcript.response)
            yield payload
    except GatewayPartitioned:
        raise
    except BatonError as error:
        yield await _failed(transcript, error, state)
    except Exception:
        log.exception("a response broke off")
        yield await _failed(transcript, ServerFault(FAULT), state)
    finally:
        await payloads.aclose()


async def _failed(
    transcript: ResponseTranscript, error: BatonError, state: ConversationState
) -> bytes:
    """Return the last event of a response that failed; it is kept, unless keeping it failed."""
    running = transcript.response.status == "in_progress"
    payload = transcript.failed(error)
    if running:
        with contextlib.suppress(Unavailable):  # the store has logged it
            await state.keep(transcript.response)
    return payload


async def _writer(engine: Engine, body: ResponseChat, head: Head) -> ResponseWriter:
    asked = Vocabulary(())
    if body.logprobs:
        asked = await engine.models.vocabulary(head.model)
    if body.encrypt_for is None:
        return ResponseWriter(body, head, asked)
    cipher = cipher_of(engine.config.reasoning_key, engine.config.run_dir)
    encrypt = partial(cipher.encrypt, owner=body.encrypt_for)
    return ResponseWriter(body, head, asked, encrypt)


def _generation(request: Request, body: ResponseChat, head: Head) -> GenerationRequest:
    work = replace(chat.ROUTE.generation(request, body, head), param="input")
    constraint = work.sampling.constraint
    if constraint is None:
        return work
    constraint = replace(constraint, param=own_name(constraint.param))
    return replace(work, sampling=replace(work.sampling, constraint=constraint))


ROUTE = StreamRoute(
    name="responses",
    id_prefix="resp_",
    schema=ResponseChat,
    num_prompts=lambda body: 1,
    generation=_generation,
    writer=_writer,
    named_events=True,
)
