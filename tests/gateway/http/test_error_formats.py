"""Shapes of error bodies."""

from __future__ import annotations

import json

from baton.errors import BatonError
from baton_gateway.http.error_formats import encoder_of

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def test_the_type_says_what_the_status_says() -> None:
    encoder = encoder_of({"path": "/v1/messages", "state": {"request_id": "req_1"}})
    for status, kind in TYPES.items():
        error = {"type": kind, "message": "x\\ud800"}
        body = json.loads(encoder(BatonError("x\ud800", status=status)))
        assert body == {"type": "error", "error": error, "request_id": "req_1"}


def test_the_path_decides() -> None:
    anthropic = [(b"anthropic-version", b"2023-06-01")]
    for path, headers, fields in (
        ("/v1/messages/count_tokens", [], {"type", "error", "request_id"}),
        ("/v1/messages_", [], {"error"}),
        ("/v1/chat/completions", anthropic, {"error"}),
        ("/v1/models/x", [], {"error"}),
        ("/v1/models/x", anthropic, {"type", "error", "request_id"}),
    ):
        scope = {"path": path, "headers": headers, "state": {"request_id": "req_1"}}
        encoder = encoder_of(scope)
        assert set(json.loads(encoder(BatonError("x")))) == fields
