from __future__ import annotations

import msgspec

from baton_gateway.batches.line_format import LineError, LineResponse, LineResult


def test_a_line_of_an_output_file() -> None:
    response = LineResponse(200, "req_1", msgspec.Raw(b'{"id":"x"}'))
    found = msgspec.json.decode(msgspec.json.encode(LineResult("b1", "c1", response, None)))
    body = {"status_code": 200, "request_id": "req_1", "body": {"id": "x"}}
    assert found == {"id": "b1", "custom_id": "c1", "response": body, "error": None}
    failed = LineResult("b1", "c1", None, LineError("batch_expired", "late"))
    assert msgspec.to_builtins(failed)["error"] == {"code": "batch_expired", "message": "late"}
