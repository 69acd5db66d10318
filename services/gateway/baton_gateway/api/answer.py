"""The answer to a request of a streaming API: one response, a stream, or a stream with a journal.

single:   generate -> deltas -> Choice.add -> Writer.response -> JSON
stream:   generate -> deltas -> Transcript.add -> events
                                (without waking the reader's task while it is idle: `DirectSink`)
durable:  generate -> deltas -> journal -> Transcript.add -> numbered events
keyed:    generate -> deltas -> journal -> the first request's format, for every repetition
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton_gateway.api.collect_answer import collect, opened
from baton_gateway.api.model_access import permitted
from baton_gateway.api.options import check_choices
from baton_gateway.api.resumption.continuation import continuation, head_of, started_of
from baton_gateway.api.resumption.idempotency import (
    check_same,
    idempotency_key,
    keyed_head,
    keyed_owner,
    mark,
    reused,
)
from baton_gateway.api.stream_routes import B, StreamRoute
from baton_gateway.config import Config
from baton_gateway.durable.journal import StreamExists, StreamRecord
from baton_gateway.durable.streams import DurableStream, DurableStreams, ReplayCursor
from baton_gateway.engine import Engine
from baton_gateway.generation.choice import Choice
from baton_gateway.generation.output import Started
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.http.body_reader import read
from baton_gateway.http.disconnect import cancel_on_disconnect
from baton_gateway.http.error_formats import encoder_of
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.sampling_defaults import with_defaults
from baton_gateway.streaming.direct_sink import DirectSink
from baton_gateway.streaming.event_frames import EventFrames, NamedFrames, NumberedFrames
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.sse import EventStream
from baton_gateway.streaming.writer import Writer, payloads


async def answer(request: Request, route: StreamRoute[B]) -> Response:
    """Return the response to a request, with the admission headers."""
    body = route.convert(await read(request, route.schema))
    engine: Engine = request.app.state.engine
    check_choices(body, route.num_prompts(body), engine.config)
    model_info = await permitted(request, body.model)
    request.state.sampling_defaults = model_info.sampling_defaults
    body = with_defaults(body, model_info.sampling_defaults)
    key = idempotency_key(request)
    if key is None:
        head = Head.of(request, route.id_prefix, body.model)
    else:
        head = keyed_head(request, route.id_prefix, route.name, body.model, key)
    writer = await route.writer(engine, body, head)
    work = route.generation(request, body, head)
    if key is not None:
        response = await _keyed(request, route, body, work, head)
    elif is_durable(request, body, route):
        response = await _durable(request, route, work, head, writer)
    elif body.stream:
        response = await _stream(request, route, work, writer)
    else:
        response = json_response(writer.response(*await collect(request, work)))
    return work.sinks.admission_headers.apply(response)


def is_durable(request: Request, body: B, route: StreamRoute[B]) -> bool:
    """Return whether the client requested a durable stream with X-Stream-Durable: 1.

    Raises `InvalidRequest` for a request without a stream, or one that cannot be resumed.
    """
    header = request.headers.get("x-stream-durable", "0")
    if header not in {"0", "1"}:
        raise InvalidRequest(
            "Invalid X-Stream-Durable header: expected 0 or 1.", code="invalid_value"
        )
    if header == "1" and not body.stream:
        raise InvalidRequest(
            "The X-Stream-Durable header needs 'stream' to be true.", code="invalid_value"
        )
    if header == "1" and body.beams is not None:
        raise InvalidRequest(
            "A beam search cannot be durable. Leave out the X-Stream-Durable header.",
            code="unsupported_value",
        )
    if header == "1" and route.named_events:
        raise InvalidRequest(
            "Streams of this API cannot be durable. Leave out the X-Stream-Durable header.",
            code="unsupported_value",
        )
    return header == "1"


async def _stream(
    request: Request, route: StreamRoute[B], work: GenerationRequest, writer: Writer
) -> Response:
    engine: Engine = request.app.state.engine
    transcript = writer.transcript()
    frames = NamedFrames() if route.named_events else EventFrames()
    sink = DirectSink.of(request.scope, engine.write_batch, transcript, frames)
    started, deltas = await opened(request, work, sink)
    events = payloads(transcript, started, deltas)
    return event_stream(request, events, frames, done=not route.named_events, sink=sink)


async def _durable(
    request: Request, route: StreamRoute[B], work: GenerationRequest, head: Head, writer: Writer
) -> Response:
    stream, started = await _recorded(request, route, work, head, tenant_of(request))
    events = stream.payloads(writer.transcript(), started, ReplayCursor())
    return event_stream(request, events, NumberedFrames(head.id))


async def _recorded(
    request: Request, route: StreamRoute[B], work: GenerationRequest, head: Head, owner: str
) -> tuple[DurableStream, Started]:
    """Begin a generation that is recorded in the journal."""
    started, deltas = await opened(request, work)
    streams: DurableStreams = request.app.state.streams
    record = StreamRecord(
        id=head.id,
        route=route.name,
        body=request.state.body,
        created=head.created,
        model=head.model,
        owner=owner,
        tenant=work.identity.tenant,
        seed=work.sampling.seed,
        prompts=tuple(prompt.column for prompt in started.prompts),
        starts=started.starts,
        adapter=started.adapter,
        sampling_defaults=dict(request.state.sampling_defaults),
    )
    return await streams.record(record, deltas), started


async def _keyed(
    request: Request, route: StreamRoute[B], body: B, work: GenerationRequest, head: Head
) -> Response:
    """Answer from the run of the client's key: the existing one, or a new one."""
    if body.beams is not None:
        raise InvalidRequest(
            "A beam search cannot be kept. Leave out the Idempotency-Key header.",
            code="unsupported_value",
        )
    durable = is_durable(request, body, route)
    owner = keyed_owner(request, durable=durable)
    stream, replayed = await _run_of_key(request, route, work, head, owner)
    writer = await route.writer(request.app.state.engine, body, head_of(stream.record))
    started = started_of(stream.record)
    if not body.stream:
        choices = [Choice() for _ in range(len(started.prompts) * work.sampling.n)]
        await cancel_on_disconnect(request.receive, _collect(stream, choices))
        return mark(json_response(writer.response(started, choices)), replayed=replayed)
    frames = NumberedFrames(head.id) if durable else EventFrames()
    frames = NamedFrames() if route.named_events else frames
    events = stream.payloads(writer.transcript(), started, ReplayCursor())
    response = event_stream(request, events, frames, done=not route.named_events)
    return mark(response, replayed=replayed)


async def _run_of_key(
    request: Request, route: StreamRoute[B], work: GenerationRequest, head: Head, owner: str
) -> tuple[DurableStream, bool]:
    """The run of the client's key, begun now if there is none, and whether there was one.

    Raises `InvalidRequest` if the key was used for another request, or for another kind of stream.
    """

    async def begin() -> DurableStream:
        return (await _recorded(request, route, work, head, owner))[0]

    streams: DurableStreams = request.app.state.streams
    try:
        stream, replayed = await streams.once(head.id, owner, continuation(request), begin)
    except StreamExists:
        raise reused() from None  # with or without X-Stream-Durable
    check_same(request, stream.record.body)
    return stream, replayed


async def _collect(stream: DurableStream, choices: list[Choice]) -> None:
    deltas = stream.deltas(ReplayCursor())
    try:
        async for delta in deltas:
            choices[delta.choice].add(delta)
    finally:
        await deltas.aclose()


def event_stream(
    request: Request,
    payloads: AsyncGenerator[bytes, None],
    frames: EventFrames,
    *,
    done: bool = True,
    sink: DirectSink | None = None,
) -> Response:
    """Return payloads as server-sent events; see `EventStream`."""
    config: Config = request.app.state.config
    return EventStream(
        payloads,
        frames,
        keep_alive=config.keep_alive_seconds,
        stall=config.slow_client_seconds,
        done=done,
        encoder=encoder_of(request.scope),
        sink=sink,
    )
