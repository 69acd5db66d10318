"""WebSocket handshakes (RFC 6455, section 4).

The `websockets` library parses the head a second time and refuses errors as plain text or drops the
connection; they are refused here with a response in OpenAI's shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import websockets
from starlette.datastructures import Headers
from websockets.exceptions import InvalidHeader
from websockets.http11 import Request
from websockets.server import ServerProtocol

from baton.errors import InvalidRequest

PATHS = frozenset({b"/v1/realtime"})
"""Paths with a WebSocket."""
SUBPROTOCOL = "realtime"
"""The subprotocol of OpenAI's Realtime API."""
METHOD = "CONNECT"
"""Stands for the method in origin checks: opening a WebSocket is no safe method, since a page of
any origin can read its messages."""
_KEY = "openai-insecure-api-key."
"""Prefix of a subprotocol that contains an API key: a page in a browser cannot set headers."""
_LONGEST_LINE = 8000
_FRAMING = (b"content-length", b"transfer-encoding", b"expect")

RawHeaders = Sequence[tuple[bytes, bytes]]


def check_upgrade(method: bytes, url: bytes, headers: RawHeaders) -> None:
    """Raise `InvalidRequest` for a request that cannot open a WebSocket here."""
    if url.partition(b"?")[0] not in PATHS:
        raise InvalidRequest("There is no WebSocket on this path.")
    if method != b"GET" or any(name in _FRAMING for name, _ in headers):
        raise InvalidRequest("Open a WebSocket by GET, without a body.")
    longest = max(map(len, (url, *(name + value for name, value in headers))))
    if longest > _LONGEST_LINE:
        raise InvalidRequest("The headers are too large.", code="headers_too_large", status=431)
    upgrade = websockets.Headers(
        (name.decode(), value.decode("latin-1")) for name, value in headers
    )
    try:
        ServerProtocol().process_request(Request(url.decode("latin-1"), upgrade))
    except InvalidHeader as error:
        # Without its value, which may be an API key: refusals are logged.
        message = f"This opens no WebSocket: the header {error.name} is missing or invalid."
        raise InvalidRequest(message) from error


def with_key(headers: Headers) -> Headers:
    """Return the headers, with an API key from a subprotocol as a bearer token if there is no
    other."""
    if "authorization" in headers or "x-api-key" in headers:
        return headers
    keys = [
        protocol.removeprefix(_KEY)
        for protocol in _subprotocols(headers)
        if protocol.startswith(_KEY)
    ]
    tokens = [(b"authorization", f"Bearer {key}".encode("latin-1")) for key in keys]
    return Headers(raw=[*headers.raw, *tokens])


def subprotocol(headers: Headers) -> str | None:
    """Return the subprotocol to accept: the API's own if offered, never one with a key."""
    return SUBPROTOCOL if SUBPROTOCOL in _subprotocols(headers) else None


def _subprotocols(headers: Headers) -> list[str]:
    offers = headers.getlist("sec-websocket-protocol")
    return [token.strip() for offer in offers for token in offer.split(",")]
