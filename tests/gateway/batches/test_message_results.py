"""Results of lines in Anthropic's words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from baton_gateway.batches.line_format import LineError, LineResponse, LineResult
from baton_gateway.batches.line_runner import cancelled_line, expired_line
from baton_gateway.batches.message_results import message_lines
from baton_gateway.durable.batch_store import Line


async def mapped(*lines: bytes) -> list[dict[str, Any]]:
    async def parts() -> AsyncIterator[bytes]:
        for one in lines:
            yield one + b"\n"

    return [json.loads(one) async for one in message_lines(parts())]


def result(status: int, body: bytes) -> bytes:
    answer = LineResponse(status, "req_1", msgspec.Raw(body))
    return msgspec.json.encode(LineResult("batch_req_1", "c", answer, None))


async def test_every_kind_of_result() -> None:
    asked = Line(0, "c", b"{}")
    revoked = LineResult("batch_req_1", "c", None, LineError("invalid_api_key", "Gone."))
    found = await mapped(
        result(200, b'{"type":"message"}'),
        result(400, b'{"type":"error"}'),
        expired_line(asked),
        cancelled_line(asked),
        msgspec.json.encode(revoked),
    )
    assert {one["custom_id"] for one in found} == {"c"}
    assert [one["result"] for one in found] == [
        {"type": "succeeded", "message": {"type": "message"}},
        {"type": "errored", "error": {"type": "error"}},
        {"type": "expired"},
        {"type": "canceled"},
        {
            "type": "errored",
            "error": {
                "type": "error",
                "error": {"type": "authentication_error", "message": "Gone."},
            },
        },
    ]
