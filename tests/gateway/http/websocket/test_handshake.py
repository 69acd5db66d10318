"""Requests that open a WebSocket, and those that do not."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from baton.errors import InvalidRequest
from baton_gateway.http.websocket.handshake import check_upgrade, subprotocol, with_key

OFFER = [
    (b"connection", b"Upgrade"),
    (b"upgrade", b"websocket"),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-key", b"MDAwMDAwMDAwMDAwMDAwMA=="),
]


def test_what_opens_none() -> None:
    check_upgrade(b"GET", b"/v1/realtime?intent=transcription", OFFER)
    for method, url, headers in (
        (b"GET", b"/v1/realtime/", OFFER),
        (b"GET", b"/v1/chat/completions", OFFER),
        (b"GET", b"http://host/v1/realtime", OFFER),
        (b"POST", b"/v1/realtime", OFFER),
        (b"GET", b"/v1/realtime", [*OFFER, (b"content-length", b"2")]),
        (b"GET", b"/v1/realtime", [*OFFER, (b"expect", b"100-continue")]),
        (b"GET", b"/v1/realtime?" + b"a" * 8000, OFFER),
        (b"GET", b"/v1/realtime", [*OFFER, (b"cookie", b"a" * 8000)]),
        (b"GET", b"/v1/realtime", OFFER[:-1]),
        (b"GET", b"/v1/realtime", [*OFFER[:2], (b"sec-websocket-version", b"8"), OFFER[3]]),
        (
            b"GET",
            b"/v1/realtime",
            [*OFFER, (b"sec-websocket-protocol", b"openai-insecure-api-key.secret\xff")],
        ),
        (b"GET", b"/v1/realtime", [*OFFER, (b"connection", b"\xff")]),
    ):
        with pytest.raises(InvalidRequest) as refused:
            check_upgrade(method, url, headers)
        assert "secret" not in refused.value.message, "it is logged"


def test_a_key_may_be_a_subprotocol() -> None:
    offer = {"sec-websocket-protocol": "realtime, openai-insecure-api-key.abc"}
    assert with_key(Headers(offer))["authorization"] == "Bearer abc"
    assert subprotocol(Headers(offer)) == "realtime"
    for other in ({"authorization": "Bearer x"}, {"x-api-key": "x"}):
        assert with_key(Headers(offer | other)) == Headers(offer | other)
    assert "authorization" not in with_key(Headers({"sec-websocket-protocol": "realtime"}))
    assert subprotocol(Headers({"sec-websocket-protocol": "chat"})) is None
