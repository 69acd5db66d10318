"""GET /v1/streams/{id}: a durable stream, from the beginning or after Last-Event-ID.

https://html.spec.whatwg.org/multipage/server-sent-events.html#last-event-id
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest, NotFound
from baton_gateway.api.answer import event_stream
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.resumption.continuation import continuation, started_of, writer_of
from baton_gateway.durable.streams import DurableStreams, ReplayCursor
from baton_gateway.generation.admission import no_model
from baton_gateway.http.middleware import quota_of, tenant_of
from baton_gateway.streaming.event_frames import NumberedFrames

router = APIRouter()


@router.get("/v1/streams/{name}")
@describe(events=dict[str, Any])
async def resume(request: Request, name: str) -> Response:
    """Return the events after the client's last one; 204 when there are none."""
    last = last_event(request, name)
    streams: DurableStreams = request.app.state.streams

    recording = await streams.find(name, tenant_of(request), continuation(request))
    if recording is None:
        raise NotFound(
            "The stream does not exist or has expired. Only streams of requests with the header "
            "X-Stream-Durable: 1 can be resumed.",
            code="stream_not_found",
        )
    ticket, place = recording.record, ReplayCursor()
    if not quota_of(request).key.permits(ticket.model):
        raise no_model(ticket.model)
    writer = await writer_of(request.app, ticket)
    events = recording.payloads(writer.transcript(), started_of(ticket), place)
    if not await _skip(events, place, last + 1):
        return Response(status_code=204)
    return event_stream(request, events, NumberedFrames(ticket.id, first=last + 1))


def last_event(request: Request, name: str) -> int:
    """Return the number of the client's last event; -1 without one.

    Raises `InvalidRequest` when the header is no event id, `NotFound` when it is another stream's.
    """
    header = request.headers.get("last-event-id", "")
    if not header:
        return -1
    stream, _, number = header.rpartition(":")
    if not re.fullmatch("[0-9]{1,9}", number):
        raise InvalidRequest(
            "Invalid Last-Event-ID header: expected the id of an event.", code="invalid_value"
        )
    if stream != name:
        raise NotFound(
            "The Last-Event-ID header is of another stream: send the id "
            "of the last event of this one.",
            code="stream_not_found",
        )
    return int(number)


async def _skip(payloads: AsyncGenerator[bytes, None], place: ReplayCursor, count: int) -> bool:
    """Skip the first `count` payloads. False when nothing is left, not even the end.

    Raises `InvalidRequest` when the stream has fewer.
    """
    place.replaying = True
    for number in range(count):
        try:
            await anext(payloads)
        except StopAsyncIteration:
            if number + 1 == count:  # the client has everything, `[DONE]` included
                return False
            raise InvalidRequest(
                "Invalid Last-Event-ID header: the stream is not so long. "
                "Send the id of its last event.",
                code="invalid_value",
            ) from None
    place.replaying = False
    return True
