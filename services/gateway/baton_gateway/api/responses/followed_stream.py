"""GET /v1/responses/{id}?stream=true: the events of a response in the background."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from pydantic import BaseModel, ConfigDict, Field

from baton.errors import BatonError
from baton_gateway.api.responses.background import BackgroundResponses
from baton_gateway.durable.streams import DurableStream, ReplayCursor
from baton_gateway.generation.output import Started
from baton_gateway.http.errors import GatewayPartitioned
from baton_gateway.streaming.response_transcript import ResponseTranscript


class StreamQuery(BaseModel):
    """Query of GET /v1/responses/{id}."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    stream: bool = False
    starting_after: int = Field(default=-1, ge=-1)
    """Number of the last event that the client has."""


async def followed(
    background: BackgroundResponses,
    stream: DurableStream,
    transcript: ResponseTranscript,
    started: Started,
    after: int = -1,
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response after number `after`; the last one once it has been stored.

    Raises `GatewayPartitioned`, which closes the connection, when another gateway continues it: its
    client may follow it there.
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
        pass  # the run has stored why it ended, unless it goes on elsewhere
    stored = await background.final(stream.record.id, stream.record.owner)
    if stored.running:
        raise GatewayPartitioned
    for payload in transcript.ended_as(stored.response):
        yield payload
