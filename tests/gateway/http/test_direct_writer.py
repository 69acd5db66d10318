"""Direct writes produce the same bytes as writes through ASGI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from baton_gateway.generation.choice import Choice
from baton_gateway.http.direct_writer import DirectWriter
from baton_gateway.pieces import Content
from baton_gateway.streaming.chunk_transcript import ChunkTranscript
from tests.fakes.gateway_app import chat, completion
from tests.fakes.gateway_socket import Site, post, site

CHATS: list[dict[str, Any]] = [
    {},
    {"n": 3},
    {"stream_options": {"include_usage": True}},
    {"return_token_ids": True},
    {"return_token_ids": True, "n": 2, "stream_options": {"include_usage": True}},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2, "return_token_ids": True},
    {"stop": ["from", "zz"]},
    {"stop": "from", "include_stop_str_in_output": True, "return_token_ids": True},
    {"stop_token_ids": [ord("f")]},
    {"max_tokens": 1},
]
COMPLETIONS: list[dict[str, Any]] = [
    {},
    {"n": 2, "prompt": ["hi", "you"]},
    {"stream_options": {"include_usage": True}},
    {"return_token_ids": True},
    {"return_token_ids": True, "n": 2, "stop": "from"},
    {"echo": True},
    {"echo": True, "return_token_ids": True, "stream_options": {"include_usage": True}},
    {"logprobs": 2},
    {"logprobs": 1, "echo": True},
    {"max_tokens": 0, "echo": True},
    {"max_tokens": 0, "return_token_ids": True},
]
KINDS = [("/v1/chat/completions", chat(**{"max_tokens": 40, "stream": True} | f)) for f in CHATS]
KINDS += [
    ("/v1/completions", completion(**{"max_tokens": 40, "stream": True} | f)) for f in COMPLETIONS
]


class _Anew:
    """In place of a template: every chunk is built and encoded as a whole."""

    def __init__(self, transcript: Any, choice: int) -> None:
        self._transcript, self._choice = transcript, choice

    def fill(self, text: str, tokens: Any) -> bytes:
        part = Choice(text=text, pieces=[Content(text)] if text else [], tokens=tokens)
        form, started = self._transcript._format, self._transcript._started
        (chunk,) = form.chunks(started, self._choice, part, first=False)
        return msgspec.json.encode(chunk)


@pytest.fixture(scope="module")
def served() -> Iterator[Site]:
    with site() as here:
        here.engine.scheduler.reply = 'Hello from "Baton" \\ \n€😀 and more.'
        here.engine.scheduler.pace = 0.001
        yield here


def _body(here: Site, path: str, asked: dict[str, Any]) -> bytes:
    """The chunks of an answer as they come; what differs between two requests is taken out."""
    with here.connect() as client:
        client.sendall(post(path, asked))
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            part = client.recv(65536)
            assert part, data
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    assert b" 200 OK" in head and b"[DONE]" in body
    return re.sub(rb'cmpl-[0-9a-f]{32}|"created":[0-9]+', b"*", body)


@pytest.mark.parametrize(("path", "asked"), KINDS, ids=lambda value: str(value)[-70:])
def test_every_kind_of_choice(
    served: Site, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any]
) -> None:
    written: list[bytes] = []
    write = DirectWriter.write

    def counted(direct: DirectWriter, data: bytes) -> None:
        written.append(data)
        write(direct, data)

    monkeypatch.setattr(DirectWriter, "write", counted)
    fast = _body(served, path, asked)
    assert written or asked["max_tokens"] < 2
    written.clear()
    monkeypatch.setattr(DirectWriter, "of", lambda scope: None)
    monkeypatch.setattr(ChunkTranscript, "_template", lambda t, choice: _Anew(t, choice))
    assert _body(served, path, asked) == fast
    assert not written


class _Transport:
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[object] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def abort(self) -> None:
        self.done.append("abort")


def test_a_chunk_and_a_cut() -> None:
    transport = _Transport()
    cycle = cast(RequestResponseCycle, SimpleNamespace(transport=transport, disconnected=False))
    direct = DirectWriter(cycle)
    direct.write(b"a" * 17)
    direct.cut()
    assert transport.done == [b"11\r\n" + b"a" * 17 + b"\r\n", "abort"] and cycle.disconnected
