"""The head of a response."""

from __future__ import annotations

from starlette.requests import Request

from baton_gateway.streaming.head import FINGERPRINT, Head


def test_response_id_and_request_id_share_their_number() -> None:
    number = "0f" * 16
    request = Request({"type": "http", "state": {"request_id": f"req_{number}"}})
    head = Head.of(request, "chatcmpl-", "m")
    assert head.fields() == {
        "id": f"chatcmpl-{number}",
        "created": head.created,
        "model": "m",
        "system_fingerprint": FINGERPRINT,
    }
