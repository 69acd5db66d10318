"""JSON responses."""

from __future__ import annotations

from baton_gateway.http.json_response import json_response
from baton_gateway.schemas.usage import Usage


def test_a_struct_is_encoded() -> None:
    response = json_response({"usage": Usage.of(1, 2)})
    assert response.media_type == "application/json"
    assert bytes(response.body).startswith(b'{"usage":{"prompt_tokens":1,')
