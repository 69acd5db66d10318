"""The service over a real socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import SettingsError
from baton.net.discovery import socket_path
from baton.net.handshake import ClientHandshake
from baton.net.sockets import Client, Server
from baton.net.topology import TOKENIZE
from baton.process.lifecycle import Lifecycle
from baton.process.rpc_server import RpcServer
from baton.protocol import (
    Beat,
    Decode,
    DecodedText,
    DecodeOpen,
    Detokenize,
    Detokenized,
    EncodeChat,
    Encoded,
    EncodeText,
    Envelope,
    Hello,
    HelloRequest,
    Message,
    RequestError,
    Vocabulary,
    VocabularyBytes,
)
from baton.protocol.token_columns import pack, unpack
from baton_tokenizer import service
from baton_tokenizer.config import Config
from baton_tokenizer.service import RequestHandler, Tokenizer, serve
from tests.fakes.vocabularies import byte_vocab

HELLO = Hello("gateway", "gateway-1", 1, "0")


class Bench:
    """A tokenizer and one gateway, driven step by step in one thread."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        vocab = byte_vocab()
        self.handler = RequestHandler(vocab, 1000, "tiny")
        self.address = socket_path(folder, TOKENIZE)
        self.server = Server(TOKENIZE, self.address)
        hello = Hello("tokenizer", "tokenizer-1", 7, "0", tokenizer=vocab.info("tiny"))
        config = Config(**settings)
        self.service = Tokenizer(self.handler, config.max_decode_states)
        self.loop = RpcServer(self.service, hello, self.server, config.max_queued_requests)
        self.client = Client(TOKENIZE, self.address, b"gateway-1")
        self.now = 0.0

    def ask(self, *messages: Message, count: int | None = None) -> list[Message]:
        """Send messages and drive the tokenizer until `count` answers are there."""
        for message in messages:
            until(lambda message=message: self.client.send(message, Envelope(trace="t")))
        found: list[Message] = []

        def answered() -> bool:
            self.loop.turn(self.now)
            found.extend(received.message for received in self.client.drain())
            return len(found) >= (len(messages) if count is None else count)

        until(answered)
        return found

    def close(self) -> None:
        self.service.close()
        self.client.close()
        self.server.close()


def until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.001)


@pytest.fixture
def bench(run_dir: Path) -> Iterator[Bench]:
    bench = Bench(run_dir, max_queued_requests=4, max_decode_states=10)
    yield bench
    bench.close()


def test_the_handshake_carries_the_facts(bench: Bench) -> None:
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], HelloRequest)
    [hello] = bench.ask(HELLO)
    assert isinstance(hello, Hello) and hello.tokenizer == byte_vocab().info("tiny")
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], Beat)


def test_every_kind_of_request(bench: Bench) -> None:
    messages = json.dumps([{"role": "user", "content": "hello"}]).encode()
    answers = bench.ask(
        EncodeChat(1, messages),
        EncodeText(2, "hello"),
        Detokenize(3, pack(list(b"hi"))),
        Vocabulary(4),
    )
    chat, text, back, pieces = sorted(answers, key=lambda m: m.id)
    assert isinstance(chat, Encoded) and isinstance(text, Encoded)
    assert unpack(text.tokens)[0] in unpack(chat.tokens)
    assert back == Detokenized(3, "hi")
    assert isinstance(pieces, VocabularyBytes) and pieces.pieces[104] == b"h"


def test_a_text_for_another_vocabulary_is_refused(bench: Bench) -> None:
    right, wrong = bench.ask(EncodeText(1, "a", model="tiny"), EncodeText(2, "a", model="other"))
    assert isinstance(right, Encoded) and isinstance(wrong, RequestError)
    assert wrong.status == 500 and "serves tiny, not other" in wrong.message


def test_a_long_text_is_encoded_aside_and_still_answered(bench: Bench) -> None:
    text = "x" * 100_000
    [answer] = bench.ask(EncodeText(1, text, limit=500))
    assert isinstance(answer, Encoded) and answer.truncated and len(answer.tokens) > 500 * 4


def test_a_long_text_does_not_delay_decoding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    answer = bench.handler.answer

    def slow(request: Any, envelope: Envelope) -> Message:
        gate.wait(60)
        return answer(request, envelope)

    monkeypatch.setattr(bench.handler, "answer", slow)
    row = Decode(pack([1], "I"), pack([0], "I"), b"\1", pack([97]), b"\1", open=(DecodeOpen(1),))
    [text] = bench.ask(EncodeText(1, "x" * 100_000), row, count=1)
    assert isinstance(text, DecodedText) and text.texts == ("a",) and not bench.loop.idle
    gate.set()
    [encoded] = bench.ask(count=1)
    assert isinstance(encoded, Encoded) and bench.loop.idle


def test_refusals_carry_code_and_place(bench: Bench) -> None:
    [answer] = bench.ask(EncodeChat(5, b'[{"role": "user", "content": [{"type": "image_url"}]}]'))
    assert isinstance(answer, RequestError) and answer.id == 5 and answer.status == 400
    assert (answer.code, answer.param) == ("unsupported_value", "messages[0].content[0]")
    [answer] = bench.ask(Detokenize(6, b"\0"))
    assert isinstance(answer, RequestError) and answer.param == "tokens"


def test_a_bug_is_one_refusal_and_the_loop_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise KeyError("secret path")

    monkeypatch.setattr(service, "decode", broken)
    refused, encoded = bench.ask(Detokenize(1, pack([97])), EncodeText(2, "a"))
    assert isinstance(refused, RequestError) and refused.status == 500
    assert "secret" not in refused.message and "secret path" in caplog.text
    assert isinstance(encoded, Encoded)


def test_decodes_that_cannot_be_done_are_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    [text] = bench.ask(Decode(pack([4], "I"), b"", b"", b"", b""))
    assert isinstance(text, DecodedText) and list(unpack(text.unknown, "I")) == [4]

    def broken(*args: Any) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(bench.service._sequences, "decode", broken)
    [text] = bench.ask(Decode(pack([5], "I"), b"", b"", b"", b""))
    assert isinstance(text, DecodedText) and list(unpack(text.unknown, "I")) == [5]


def test_overload_is_refused_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(bench.handler, "answer", lambda *_: gate.wait(60) and Encoded(0, b""))
    texts = [EncodeText(number, "x" * 50_000) for number in range(6)]
    refused = bench.ask(*texts, count=2)
    gate.set()
    assert [(a.id, a.status, a.code) for a in refused if isinstance(a, RequestError)] == [
        (4, 503, "server_is_overloaded"),
        (5, 503, "server_is_overloaded"),
    ]
    assert bench.ask(count=4) == [Encoded(0, b"")] * 4


def test_a_lost_gateway_leaves_nothing_behind(bench: Bench) -> None:
    bench.ask(HELLO)
    bench.ask(Decode(b"", b"", b"", b"", b"", open=(DecodeOpen(1),)))
    assert not bench.loop.idle
    for tenth in range(60):
        bench.loop.turn(bench.now + tenth / 10)
    assert bench.loop.idle


def test_a_restarted_gateway_leaves_nothing_behind(bench: Bench) -> None:
    bench.ask(HELLO)
    bench.ask(Decode(b"", b"", b"", b"", b"", open=(DecodeOpen(1),)))
    bench.ask(Hello("gateway", "gateway-1", 2, "0"))
    assert bench.loop.idle


def test_another_protocol_is_not_greeted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    old = Hello("gateway", "gateway-1", 1, "0", protocol=0)
    [answer] = bench.ask(old, Beat("gateway-1", 1), count=1)
    assert isinstance(answer, HelloRequest) and "upgrade gateway-1" in caplog.text


def test_encoding_is_traced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[tuple[str, str]] = []
    original = service.span

    def spy(name: str, parent: str = "") -> Any:
        spans.append((name, parent))
        return original(name, parent)

    monkeypatch.setattr(service, "span", spy)
    bench.ask(EncodeText(1, "a"), Detokenize(2, b""))
    assert spans == [("encode", "t")]


def test_serve_from_start_to_drain(stories: Path, run_dir: Path) -> None:
    config = Config(model=str(stories), run_dir=run_dir, shutdown_timeout=5)
    life = Lifecycle(config.shutdown_timeout)
    result = SimpleNamespace(code=-1)

    def run() -> None:
        result.code = serve(config, life)

    thread = threading.Thread(target=run)
    thread.start()
    handshake = ClientHandshake(HELLO)
    with Client(TOKENIZE, socket_path(run_dir, TOKENIZE), b"gateway-1") as client:

        def greeted() -> bool:
            due = handshake.due(time.monotonic())
            if due is not None:
                client.send(due)
            return any([handshake.receive(r.message, time.monotonic()) for r in client.drain()])

        until(greeted)
        assert handshake.server is not None and handshake.server.tokenizer is not None
        assert handshake.server.tokenizer.vocab_size == 512
        life.stop()
        thread.join(60)
    assert result.code == 0


def test_formats_of_outputs_come_from_the_template_or_by_name() -> None:
    vocab = replace(byte_vocab(), templates={"default": "<tool_call> {{ messages }} </think>"})
    found = service._described(vocab, Config())
    assert (found.tool_call_parser, found.reasoning_parser) == ("hermes", "qwen3")
    named = Config(tool_call_parser="mistral", reasoning_parser="none")
    found = service._described(vocab, named)
    assert (found.tool_call_parser, found.reasoning_parser) == ("mistral", "none")
    with pytest.raises(SettingsError, match="Did you mean 'hermes'"):
        service._described(vocab, Config(tool_call_parser="hermse"))


def test_a_declared_format_travels_with_its_declaration() -> None:
    calls = {"open": "<<", "close": ">>", "content": "json"}
    vocab = replace(byte_vocab(), response_template={"fields": {"tool_calls": calls}})
    found = service._described(vocab, Config())
    assert found.tool_call_parser == "response_template"
    assert json.loads(found.response_template)["fields"]["tool_calls"]["open"] == "<<"


def test_the_end_of_a_conversation_is_sent_along() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    handler = RequestHandler(replace(byte_vocab(), templates={"default": template}), 1000, "tiny")
    messages = json.dumps([{"role": "user", "content": "hi " * 50}]).encode()
    answer = handler.answer(EncodeChat(1, messages), Envelope())
    assert isinstance(answer, Encoded)
    assert len(answer.tail) == 64 and answer.tail.endswith("hi <think>")
