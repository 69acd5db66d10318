"""POST /v1/responses: in one response, streamed, or in the background.

single:      generate -> response -> store -> JSON
stream:      generate -> events, the response stored before the last one
background:  generate -> journal, store, job -> JSON or events; `BackgroundResponses` does the rest
keyed:       as in the background, but the client waits for the end
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from baton.errors import BatonError, InvalidRequest, NotFound, ServerFault, Unavailable
from baton.logs import logger
from baton_gateway.api.answer import event_stream, is_durable
from baton_gateway.api.collect_answer import collect, opened, submitted
from baton_gateway.api.model_access import permitted
from baton_gateway.api.responses.background import BackgroundResponses
from baton_gateway.api.responses.conversation_state import ConversationState, state_of
from baton_gateway.api.responses.route import ROUTE, response_writer
from baton_gateway.api.responses.stream_follower import follow, stream_again
from baton_gateway.api.responses.truncation import fitting_chat
from baton_gateway.api.resumption.idempotency import idempotency_key, keyed_head, mark, reused
from baton_gateway.durable.job import JobDetails
from baton_gateway.durable.journal import StreamExists, StreamRecord
from baton_gateway.durable.response_store import ResponseStore
from baton_gateway.durable.streams import DurableStreams
from baton_gateway.engine import Engine
from baton_gateway.generation.output import Started
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.http.disconnect import cancel_on_disconnect
from baton_gateway.http.errors import FAULT, GatewayPartitioned
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import quota_of, tenant_of
from baton_gateway.schemas.responses.chat import ResponseChat
from baton_gateway.schemas.responses.request import ResponsesRequest
from baton_gateway.schemas.sampling_defaults import with_defaults
from baton_gateway.streaming.direct_sink import DirectSink
from baton_gateway.streaming.event_frames import NamedFrames
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.response_transcript import ResponseTranscript
from baton_gateway.streaming.response_writer import ResponseWriter
from baton_gateway.streaming.writer import payloads

log = logger(__name__)


async def answer_response(request: Request, params: ResponsesRequest) -> Response:
    """Return the answer to a request."""
    model_info = await permitted(request, params.model)
    head = _head(request, params)
    if (earlier := await _earlier_response(request, head, params)) is not None:
        return earlier
    state = await state_of(request, params)
    body = with_defaults(await fitting_chat(request, params, state), model_info.sampling_defaults)
    is_durable(request, body, ROUTE)
    writer = await response_writer(request.app.state.engine, body, head)
    work = ROUTE.generation(request, body, head)
    if params.background or idempotency_key(request) is not None:
        response = await _begin(request, body, work, writer, state)
    elif body.stream:
        response = await _stream(request, work, writer, state)
    else:
        complete = writer.response(*await collect(request, work))
        await state.keep(complete)
        response = json_response(complete)
    return work.sinks.admission_headers.apply(response)


def _head(request: Request, params: ResponsesRequest) -> Head:
    """Return the head of a response; with an Idempotency-Key, that of the first request."""
    key = idempotency_key(request)
    if key is None:
        return Head.of(request, ROUTE.id_prefix, params.model)
    if not params.store:
        raise InvalidRequest(
            "The Idempotency-Key header needs 'store' to be true for this API.",
            code="unsupported_value",
        )
    return keyed_head(request, ROUTE.id_prefix, ROUTE.name, params.model, key)


async def _earlier_response(
    request: Request, head: Head, params: ResponsesRequest
) -> Response | None:
    """Return the response that an earlier request with this Idempotency-Key began. Raises
    `InvalidRequest` if that request differs."""
    if idempotency_key(request) is None:
        return None
    owner = tenant_of(request)
    try:
        stored = await ResponseStore(request.app.state.objects).get(head.id, owner)
    except NotFound:
        return None
    if stored.request != _digest(request):
        raise reused()
    if params.stream:
        response = await stream_again(request, head.id)
    elif params.background or not stored.running:
        response = json_response(stored.response)
    else:
        await request.app.state.background.stream(head.id, owner)  # its gateway may be dead
        response = await _ended(request, head.id)
    return mark(response, replayed=True)


async def _ended(request: Request, name: str) -> Response:
    """Wait for the end of a response and return it. It continues if the client leaves.

    Raises `Unavailable` if another gateway takes over meanwhile.
    """
    background: BackgroundResponses = request.app.state.background
    final = background.final(name, tenant_of(request))
    stored = await cancel_on_disconnect(request.receive, final)
    if stored.running:
        raise Unavailable("This response is changing its gateway. Try again.", retry_after=1)
    return json_response(stored.response)


async def _stream(
    request: Request, work: GenerationRequest, writer: ResponseWriter, state: ConversationState
) -> Response:
    engine: Engine = request.app.state.engine
    transcript, frames = writer.transcript(), NamedFrames()
    sink = DirectSink.of(request.scope, engine.write_batch, transcript, frames)
    events = payloads(transcript, *await opened(request, work, sink))
    stored_events = _stored_at_end(events, transcript, state)
    return event_stream(request, stored_events, frames, done=False, sink=sink)


async def _begin(
    request: Request,
    body: ResponseChat,
    work: GenerationRequest,
    writer: ResponseWriter,
    state: ConversationState,
) -> Response:
    """Begin a response in the background, or one that may be requested again. The journal and the
    store have it before the client gets its id."""
    background: BackgroundResponses = request.app.state.background
    streams: DurableStreams = request.app.state.streams
    started, deltas = await submitted(request, work)
    try:
        stream = await streams.record(_record(request, body, work, writer, started), deltas)
    except StreamExists:
        raise Unavailable(
            "A request with this Idempotency-Key is being started. Try again.", retry_after=1
        ) from None
    transcript = writer.transcript()
    await state.keep(transcript.response, _digest(request))
    details = JobDetails(
        stream.record.id, quota_of(request).key.name, state.conversation, len(state.input)
    )
    await background.begin(state.owner, details, stream)
    if body.stream:
        return follow(request, stream, transcript)
    if transcript.response.background:
        return json_response(transcript.response)
    return await _ended(request, writer.head.id)


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
        adapter=started.adapter,
    )


def _digest(request: Request) -> str:
    """Return a digest that identifies a repeated request; empty without an Idempotency-Key."""
    if idempotency_key(request) is None:
        return ""
    return hashlib.sha256(request.state.body).hexdigest()


async def _stored_at_end(
    payloads: AsyncGenerator[bytes, None], transcript: ResponseTranscript, state: ConversationState
) -> AsyncGenerator[bytes, None]:
    """Yield the payloads of a stream, and store the response before its last one. Errors become the
    last event. Closing it closes `payloads`."""
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
    """Return the last event of a failed response. The response is stored, unless storing failed."""
    running = transcript.response.status == "in_progress"
    payload = transcript.failed(error)
    if running:
        with contextlib.suppress(Unavailable):  # the store has logged it
            await state.keep(transcript.response)
    return payload
