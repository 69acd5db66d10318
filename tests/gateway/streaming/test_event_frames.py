"""Frames of events."""

from __future__ import annotations

import json

import httpx

from baton_gateway.streaming.event_frames import EventFrames, NamedFrames, NumberedFrames
from tests.fakes.gateway_app import chat, completion
from tests.fakes.gateway_socket import site


def test_plain_events_begin_with_their_data() -> None:
    frames = EventFrames()
    assert frames.event(b"{}") == frames.error(b"{}") == b"data: {}\n\n"


def test_events_are_named_by_their_type() -> None:
    frames, payload = NamedFrames(), b'{"type":"ping","x":1}'
    assert frames.event(payload) == frames.error(payload)
    assert frames.event(payload) == b'event: ping\ndata: {"type":"ping","x":1}\n\n'


def test_events_are_numbered_and_errors_are_not() -> None:
    frames = NumberedFrames("s", first=3)
    assert frames.event(b"{}") == b"id: s:3\ndata: {}\n\n"
    assert frames.error(b"{}") == b"data: {}\n\n"
    assert frames.event(b"[DONE]") == b"id: s:4\ndata: [DONE]\n\n"


def bench_serve(received: bytes) -> tuple[str, int]:
    """Text and output tokens of a stream as `vllm bench serve` reads it.

    vllm is not installed here, so this is its rule (its `endpoint_request_func.py`):
    events are parted by empty lines, comments are passed over, "data: " at the very start is taken
    off, and all that is left must be JSON or "[DONE]".
    """
    text, tokens, done = "", 0, False
    for message in (part.strip() for part in received.decode().split("\n\n")):
        if not message or message.startswith(":"):
            continue
        chunk = message.removeprefix("data: ")
        if chunk == "[DONE]":
            done = True
            continue
        data = json.loads(chunk)
        if choices := data.get("choices"):
            text += choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
        elif usage := data.get("usage"):
            tokens = usage["completion_tokens"]
    assert done
    return text, tokens


def test_vllm_bench_serve_reads_plain_streams_with_comments_between_their_events() -> None:
    reply = "Hello from Baton."
    asked = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 50}
    bodies = {"/v1/completions": completion(**asked), "/v1/chat/completions": chat(**asked)}
    with site(keep_alive_seconds=0.05) as here:
        here.engine.scheduler.reply, here.engine.scheduler.pace = reply, 0.08
        for path, body in bodies.items():
            received = httpx.post(f"{here.url}{path}", json=body, timeout=30).content
            assert b": keep-alive" in received
            assert bench_serve(received) == (reply, len(reply) + 1)
