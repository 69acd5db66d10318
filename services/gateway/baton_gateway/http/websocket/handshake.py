"""Requests that open a WebSocket (RFC 6455, section 4).

The head is parsed a second time by the `websockets` library, so what that would refuse without an
answer is refused before.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers

from baton.errors import InvalidRequest

PATHS = frozenset({b"/v1/realtime"})
"""Where there is a WebSocket."""
SUBPROTOCOL = "realtime"
"""The subprotocol of OpenAI's Realtime API."""
METHOD = "CONNECT"
"""Stands for the method in checks of where a request comes from: opening a WebSocket is no safe
method, since a browser lets any page read what comes over it."""
_KEY = "openai-insecure-api-key."
"""A subprotocol that begins with this has an API key: a page of a browser cannot set headers."""
_LONGEST_LINE = 8000
_FRAMING = (b"content-length", b"transfer-encoding", b"expect")

RawHeaders = Sequence[tuple[bytes, bytes]]


def check_upgrade(method: bytes, url: bytes, headers: RawHeaders) -> None:
    """Raise `InvalidRequest` for a request that opens no WebSocket here."""
    if url.partition(b"?")[0] not in PATHS:
        raise InvalidRequest("There is no WebSocket on this path.")
    if method != b"GET" or any(name in _FRAMING for name, _ in headers):
        raise InvalidRequest("Open a WebSocket by GET, without a body.")
    longest = max(map(len, (url, *(name + value for name, value in headers))))
    if longest > _LONGEST_LINE:
        raise InvalidRequest("The headers are too large.", code="headers_too_large", status=431)


def with_key(headers: Headers) -> Headers:
    """Return the headers, with the API key of a subprotocol as a bearer token if there is no
    other."""
    if "authorization" in headers or "x-api-key" in headers:
        return headers
    keys = [one.removeprefix(_KEY) for one in _subprotocols(headers) if one.startswith(_KEY)]
    given = [(b"authorization", f"Bearer {key}".encode("latin-1")) for key in keys]
    return Headers(raw=[*headers.raw, *given])


def subprotocol(headers: Headers) -> str | None:
    """Return the subprotocol to accept: the API's own if it is offered, never one with a key."""
    return SUBPROTOCOL if SUBPROTOCOL in _subprotocols(headers) else None


def _subprotocols(headers: Headers) -> list[str]:
    offers = headers.getlist("sec-websocket-protocol")
    return [token.strip() for offer in offers for token in offer.split(",")]
