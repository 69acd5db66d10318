"""The answer to a request of a streaming API: whole, streamed, or streamed with a journal.

whole:    generate -> deltas -> Choice.add -> Writer.whole -> JSON
stream:   generate -> deltas -> Transcript.add -> events
                                (past the reader's task while it is idle: `DirectSink`)
durable:  generate -> deltas -> journal -> Transcript.add -> numbered events
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton_gateway.api.collect_answer import opened, whole
from baton_gateway.api.model_access import permitted
from baton_gateway.api.options import check_choices
from baton_gateway.api.stream_routes import B, StreamRoute
from baton_gateway.config import Config
from baton_gateway.durable.journal import StreamRecord
from baton_gateway.durable.streams import DurableStreams, ReplayCursor
from baton_gateway.engine import Engine
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.http.body_reader import read
from baton_gateway.http.error_formats import encoder_of
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import tenant_of
from baton_gateway.streaming.direct_sink import DirectSink
from baton_gateway.streaming.event_frames import EventFrames, NamedFrames, NumberedFrames
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.sse import EventStream
from baton_gateway.streaming.writer import Writer, payloads


async def answer(request: Request, route: StreamRoute[B]) -> Response:
    """Return the response to a request, with the admission headers."""
    return await answer_to(request, route, await read(request, route.schema))


async def answer_to(request: Request, route: StreamRoute[B], body: B) -> Response:
    """Like `answer`, of a body that has been read."""
    engine: Engine = request.app.state.engine
    check_choices(body, route.num_prompts(body), engine.config)
    await permitted(request, body.model)
    head = Head.of(request, route.id_prefix, body.model)
    writer = await route.writer(engine, body, head)
    work = route.generation(request, body, head)
    if is_durable(request, body, route):
        response = await _durable(request, route, work, head, writer)
    elif body.stream:
        response = await _stream(request, route, work, writer)
    else:
        response = json_response(writer.whole(*await whole(request, work)))
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
    started, deltas = await opened(request, work)
    streams: DurableStreams = request.app.state.streams
    record = StreamRecord(
        id=head.id,
        route=route.name,
        body=request.state.body,
        created=head.created,
        model=head.model,
        owner=tenant_of(request),
        tenant=work.identity.tenant,
        seed=work.sampling.seed,
        prompts=tuple(prompt.column for prompt in started.prompts),
        starts=started.starts,
    )
    stream = await streams.record(record, deltas)
    events = stream.payloads(writer.transcript(), started, ReplayCursor())
    return event_stream(request, events, NumberedFrames(head.id))


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
