"""Whole, streamed and durable answers say the same."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.fakes import gateway_socket
from tests.fakes.gateway_app import Site, chat, completion, error_of, events_of

BODIES = {"/v1/chat/completions": chat(max_tokens=9), "/v1/completions": completion(max_tokens=9)}


def _text(chunks: list[Any]) -> str:
    """The text of an answer, whichever API it is of."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    parts = [c.get("text") or c.get("message", c.get("delta", {})).get("content") for c in choices]
    return "".join(part or "" for part in parts)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("durable", ["0", "1"])
def test_three_ways_to_one_text(shared_site: Site, path: str, durable: str) -> None:
    whole = shared_site.post(path, BODIES[path])
    streamed = shared_site.post(
        path, BODIES[path] | {"stream": True}, headers={"x-stream-durable": durable}
    )
    assert (whole.status_code, streamed.status_code) == (200, 200)
    *chunks, done = events_of(streamed.text)
    assert _text(chunks) == _text([whole.json()]) == "Hello fro" and done == "[DONE]"


def _read_as_vllm_bench(response: http.client.HTTPResponse) -> list[str]:
    """The payloads as the benchmark client of vLLM finds them: whatever comes over the wire is
    split at blank lines, and each message stripped of one `data: ` at its start."""
    buffer, found = b"", []
    while part := response.read1():
        buffer += part
        while b"\n\n" in buffer:
            message, buffer = buffer.split(b"\n\n", 1)
            if message := message.strip():
                found.append(message.decode().removeprefix("data: "))
    assert not buffer
    return found


@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_only_strips_data_reads_a_stream(path: str) -> None:
    body = json.dumps(BODIES[path] | {"stream": True, "stream_options": {"include_usage": True}})
    with gateway_socket.site() as here:
        here.engine.scheduler.pace = 0.001
        client = http.client.HTTPConnection("127.0.0.1", here.port, timeout=60)
        client.request("POST", path, body, {"content-type": "application/json"})
        *payloads, done = _read_as_vllm_bench(client.getresponse())
        client.close()
    chunks = [json.loads(payload) for payload in payloads]
    assert _text(chunks) == "Hello fro" and done == "[DONE]"
    assert chunks[-1]["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize(
    ("header", "fields", "code"),
    [
        ("yes", {"stream": True}, "invalid_value"),
        ("1", {}, "invalid_value"),
        ("1", {"stream": True, "use_beam_search": True}, "unsupported_value"),
    ],
)
def test_what_cannot_be_durable_is_refused(
    shared_site: Site, header: str, fields: dict[str, Any], code: str
) -> None:
    response = shared_site.post(
        "/v1/completions", completion(**fields), headers={"x-stream-durable": header}
    )
    assert response.status_code == 400 and error_of(response)["code"] == code
