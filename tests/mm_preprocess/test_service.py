"""The service over a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.discovery import socket_path
from baton.peers import Greeting
from baton.protocol import (
    Beat,
    Hello,
    MediaInfo,
    MediaItem,
    Message,
    Prepare,
    Prepared,
    Refused,
    Who,
)
from baton.service import Life
from baton.topology import MEDIA
from baton.transport import Client, Server
from baton_mm_preprocess import service
from baton_mm_preprocess.config import Config
from baton_mm_preprocess.modalities import Model
from baton_mm_preprocess.service import Preprocessor, serve

HELLO = Hello("gateway", "gateway-1", 1, "0")
ITEM = MediaItem("image", "data:,", "messages[0].content[0]")


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.001)


class Bench:
    """A preprocessor and one gateway, driven in one thread."""

    def __init__(self, folder: Path) -> None:
        address = socket_path(folder, MEDIA)
        self.server = Server(MEDIA, address)
        model = Model("m", "Plain")
        hello = Hello("mm-preprocess", "mm-1", 7, "0", media=MediaInfo("m", model.modalities))
        self.preprocessor = Preprocessor(model, hello, self.server)
        self.client = Client(MEDIA, address, b"gateway-1")

    def ask(self, *messages: Message, count: int = 1) -> list[Message]:
        for message in messages:
            until(lambda message=message: self.client.send(message))
        found: list[Message] = []

        def answered() -> bool:
            self.preprocessor.turn(0.0)
            found.extend(received.message for received in self.client.drain())
            return len(found) >= count

        until(answered)
        return found


@pytest.fixture
def bench(run_dir: Path) -> Iterator[Bench]:
    bench = Bench(run_dir)
    yield bench
    bench.client.close()
    bench.server.close()


def test_the_handshake_carries_the_facts(bench: Bench) -> None:
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], Who)
    [hello] = bench.ask(HELLO)
    assert isinstance(hello, Hello) and hello.media == MediaInfo("m", ())
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], Beat)


def test_a_request_without_media_is_prepared(bench: Bench) -> None:
    assert bench.ask(Prepare(3, ())) == [Prepared(3, (), ())]


def test_media_for_a_text_model_is_refused_by_place(bench: Bench) -> None:
    [answer] = bench.ask(Prepare(3, (ITEM,)))
    assert isinstance(answer, Refused) and answer.id == 3
    assert (answer.status, answer.code, answer.param) == (400, "unsupported_value", ITEM.param)
    assert answer.message == "The model m does not take image input. It takes text only."


def test_a_bug_is_one_refusal_and_the_loop_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise KeyError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(service, "prepare", broken)
        [answer] = bench.ask(Prepare(1, ()))
    assert isinstance(answer, Refused) and answer.status == 500
    assert "secret" not in answer.message and "secret" in caplog.text
    assert bench.ask(Prepare(2, ())) == [Prepared(2, (), ())]


def test_another_protocol_is_not_greeted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    old = Hello("gateway", "gateway-1", 1, "0", protocol=0)
    [answer] = bench.ask(old, Beat("gateway-1", 1))
    assert isinstance(answer, Who) and "upgrade gateway-1" in caplog.text


def test_a_lost_gateway_is_a_stranger_again(bench: Bench) -> None:
    bench.ask(HELLO)
    bench.preprocessor.turn(5.0)
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], Who)


def test_serve_from_start_to_end(stories: Path, run_dir: Path) -> None:
    config = Config(model=str(stories), run_dir=run_dir)
    life = Life(5.0)
    result = SimpleNamespace(code=-1)

    def run() -> None:
        result.code = serve(config, life)

    thread = threading.Thread(target=run)
    thread.start()
    greeting = Greeting(HELLO)
    with Client(MEDIA, socket_path(run_dir, MEDIA), b"gateway-1") as client:

        def greeted() -> bool:
            due = greeting.due(time.monotonic())
            if due is not None:
                client.send(due)
            return any([greeting.heard(r.message, time.monotonic()) for r in client.drain()])

        until(greeted)
        assert greeting.server is not None and greeting.server.media == MediaInfo("hf", ())
        life.stop()
        thread.join(10)
    assert result.code == 0
