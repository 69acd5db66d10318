"""GET /v1/responses/{id}?stream=true: the events of a background response."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import BatonError
from baton_gateway.api.answer import event_stream
from baton_gateway.api.responses.background import BackgroundResponses
from baton_gateway.api.resumption.continuation import started_of, writer_of
from baton_gateway.durable.streams import DurableStream, ReplayCursor
from baton_gateway.generation.output import Started
from baton_gateway.http.errors import GatewayPartitioned, invalid
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.responses.include_query import IncludeQuery
from baton_gateway.streaming.event_frames import NamedFrames
from baton_gateway.streaming.response_transcript import ResponseTranscript
from baton_gateway.streaming.response_writer import ResponseWriter


class StreamQuery(IncludeQuery):
    """Query of GET /v1/responses/{id}."""

    stream: bool = False
    starting_after: int = Field(default=-1, ge=-1)
    """Number of the last event that the client has."""


async def stream_again(request: Request, name: str, after: int = -1) -> Response:
    """Return the events of a response after number `after`, from the journal.

    Raises `InvalidRequest` if its events have expired.
    """
    background: BackgroundResponses = request.app.state.background
    stream = await background.stream(name, tenant_of(request))
    if stream is None:
        raise invalid("stream", "The events of this response are gone. Retrieve it without them.")
    writer = await writer_of(request.app, stream.record)
    assert isinstance(writer, ResponseWriter)
    return follow(request, stream, writer.transcript(), after)


def follow(
    request: Request, stream: DurableStream, transcript: ResponseTranscript, after: int = -1
) -> Response:
    """Return the events of a stream after number `after`, from a new transcript."""
    started = started_of(stream.record)
    events = followed(request.app.state.background, stream, transcript, started, after)
    return event_stream(request, events, NamedFrames(), done=False)


async def followed(
    background: BackgroundResponses,
    stream: DurableStream,
    transcript: ResponseTranscript,
    started: Started,
    after: int = -1,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response after number `after`; the last one once the response is
    stored.

    Raises `GatewayPartitioned`, which closes the connection, if another gateway continues the
    response: its client may follow it there.
    """
    number = 0
    async for payload in _payloads(background, stream, transcript, started):
        if number > after:
            yield payload
        number += 1


async def _payloads(
    background: BackgroundResponses,
    stream: DurableStream,
    transcript: ResponseTranscript,
    started: Started,
) -> AsyncGenerator[bytes, None]:
    for payload in transcript.opening(started):
        yield payload
    try:
        async for delta in stream.deltas(ReplayCursor()):
            for payload in transcript.add(delta):
                yield payload
    except GatewayPartitioned:
        raise
    except BatonError:
        pass  # The run has stored why it ended, unless another gateway continues it.
    stored = await background.final(stream.record.id, stream.record.owner)
    if stored.running:
        raise GatewayPartitioned
    for payload in transcript.ended_as(stored.response):
        yield payload
