"""The terminal chat against a mock server."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import httpx
import pytest
from rich.console import Console

from baton.errors import BatonError
from baton_ops.commands.chat import Chat, Conversation, talk

Handler = Callable[[httpx.Request], httpx.Response]


def event(**data: Any) -> str:
    return f"data: {json.dumps(data)}\n\n"


def stream(*texts: str) -> str:
    return "".join(event(choices=[{"delta": {"content": t}}]) for t in texts) + "data: [DONE]\n\n"


def server(reply: httpx.Response, seen: list[Any] | None = None) -> httpx.MockTransport:
    """Lists one model and answers every chat with `reply`."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        if seen is not None:
            seen.append(json.loads(request.content))
        return reply

    return httpx.MockTransport(handle)


def conversation(transport: httpx.MockTransport, **options: Any) -> Conversation:
    return Conversation(Chat(**options), httpx.Client(transport=transport, base_url="http://x"))


def test_the_answer_arrives_in_pieces_and_is_remembered() -> None:
    seen: list[Any] = []
    reply = httpx.Response(200, text=stream("Hel", "lo"))
    chat = conversation(server(reply, seen), system="Be kind.", temperature=0.5)
    assert list(chat.ask("Hi")) == ["Hel", "lo"]
    assert seen[0]["model"] == "tiny" and seen[0]["stream"] is True
    assert seen[0]["temperature"] == 0.5 and "max_tokens" not in seen[0]
    assert [m["role"] for m in seen[0]["messages"]] == ["system", "user"]
    assert chat.messages[-1] == {"role": "assistant", "content": "Hello"}


def test_chunks_without_text_are_silent() -> None:
    text = event(choices=[{"delta": {"role": "assistant"}}]) + event(choices=[]) + stream("x")
    chat = conversation(server(httpx.Response(200, text=text)))
    assert "".join(chat.ask("Hi")) == "x"


def test_an_error_event_in_the_stream_is_raised() -> None:
    reply = httpx.Response(200, text=event(error={"message": "worker lost"}))
    with pytest.raises(BatonError, match="worker lost"):
        list(conversation(server(reply)).ask("Hi"))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (httpx.Response(400, json={"error": {"message": "too long"}}), "too long"),
        (httpx.Response(502, text="<html>"), "status 502"),
    ],
)
def test_a_refusal_is_raised_with_its_reason(reply: httpx.Response, words: str) -> None:
    chat = conversation(server(reply))
    with pytest.raises(BatonError, match=words):
        list(chat.ask("Hi"))
    assert chat.messages == []


def test_a_server_without_a_model_is_said() -> None:
    empty = httpx.MockTransport(lambda request: httpx.Response(200, json={"data": []}))
    with pytest.raises(BatonError, match="no model yet"):
        conversation(empty)


def test_talk_prints_answers_and_errors_until_the_input_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = iter(["Hi", "  "])
    out = StringIO()
    console = Console(file=out)

    def type_line(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(console, "input", type_line)
    make = httpx.Client
    transport = server(httpx.Response(200, text=stream("[bold] is kept")))
    monkeypatch.setattr(httpx, "Client", lambda **kw: make(transport=transport, **kw))
    talk(Chat(), console)
    assert "tiny at http://127.0.0.1:8000" in out.getvalue()
    assert "[bold] is kept" in out.getvalue()
