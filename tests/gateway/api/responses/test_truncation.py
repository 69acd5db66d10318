"""Conversations that are too long."""

from __future__ import annotations

import json
from typing import Any

from baton.protocol import EncodeChat
from tests.fakes.gateway_app import Site, error_of
from tests.fakes.gateway_engine import MAX_LENGTH, MODEL

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "2"}


def test_the_oldest_turns_are_dropped_and_no_more_than_needed(shared_site: Site) -> None:
    size = MAX_LENGTH // 5
    turns = [{"role": "user", "content": str(n) * size} for n in range(9)]
    items: list[Any] = [{"role": "developer", "content": "d"}, *turns]
    items[4:4] = [CALL, OUTPUT]
    body = {"model": MODEL, "input": items, "instructions": "i", "max_output_tokens": 2}
    assert error_of(shared_site.post("/v1/responses", body))["code"] == "context_length_exceeded"
    answer = shared_site.post("/v1/responses", body | {"truncation": "auto"})
    assert answer.status_code == 200, answer.text
    [*_, last] = [m for m in shared_site.engine.tokenizer.seen if isinstance(m, EncodeChat)]
    found = json.loads(last.messages)
    assert found[0] == {"role": "system", "content": "i\n\nd"}
    assert [message["content"][0] for message in found[1:]] == ["5", "6", "7", "8"]
    assert answer.json()["truncation"] == "auto"
    huge = [*turns[:2], {"role": "user", "content": "x" * (2 * MAX_LENGTH)}]
    refused = shared_site.post("/v1/responses", body | {"truncation": "auto", "input": huge})
    assert error_of(refused)["code"] == "context_length_exceeded"
