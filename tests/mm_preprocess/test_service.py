"""The service over a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from baton.errors import InvalidRequest
from baton.net.discovery import socket_path
from baton.net.handshake import ClientHandshake
from baton.net.sockets import Client, Server
from baton.net.topology import MEDIA
from baton.process.lifecycle import Lifecycle
from baton.process.rpc_server import RpcServer
from baton.protocol import (
    Beat,
    Blob,
    Hello,
    HelloRequest,
    MediaInfo,
    MediaItem,
    Message,
    Prepare,
    Prepared,
    RequestError,
)
from baton.protocol.packed_tokens import num_tokens
from baton_mm_preprocess import service
from baton_mm_preprocess.audio.audio_input import AudioInput
from baton_mm_preprocess.audio.families import plain
from baton_mm_preprocess.audio.log_mel_chunks import LogMelChunks
from baton_mm_preprocess.audio.spectrum import LogMel
from baton_mm_preprocess.config import Config
from baton_mm_preprocess.image.processor import read_processor
from baton_mm_preprocess.model_info import Images, Model
from baton_mm_preprocess.processors.fixed_size import FixedSize
from baton_mm_preprocess.sandbox import process
from baton_mm_preprocess.sandbox.process import Outcome, Setup, Source
from baton_mm_preprocess.service import Preprocessor, serve
from tests.support.tiny_dual_encoders import PROCESSORS, data_url, picture

HELLO = Hello("gateway", "gateway-1", 1, "0")
ITEM = MediaItem("image", "data:,", "messages[0].content[0]")
PLAIN = Model("m", "Plain")
PROCESSOR = read_processor(PROCESSORS["SiglipModel"], "")
EYES = Model("m", "SiglipModel", ("image",), Images(FixedSize(PROCESSOR, 16)))
GOOD = data_url(picture(40, 30))


def seen(url: str, number: int = 0) -> MediaItem:
    return MediaItem("image", url, f"messages[0].content[{number}]")


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.001)


class Bench:
    """A preprocessor and one gateway, driven in one thread."""

    def __init__(self, folder: Path, model: Model = PLAIN, **settings: Any) -> None:
        address = socket_path(folder, MEDIA)
        self.server = Server(MEDIA, address)
        hello = Hello("mm-preprocess", "mm-1", 7, "0", media=MediaInfo("m", model.modalities))
        config = Config(**settings)
        self.preprocessor = Preprocessor(model, config)
        self.loop = RpcServer(self.preprocessor, hello, self.server, config.max_queued_requests)
        self.client = Client(MEDIA, address, b"gateway-1")

    def ask(self, *messages: Message, count: int = 1) -> list[Message]:
        for message in messages:
            until(lambda message=message: self.client.send(message))
        found: list[Message] = []

        def answered() -> bool:
            self.loop.turn(0.0)
            found.extend(received.message for received in self.client.drain())
            return len(found) >= count

        until(answered)
        return found

    def close(self) -> None:
        self.client.close()
        self.preprocessor.close()
        self.server.close()


@pytest.fixture
def bench(run_dir: Path) -> Iterator[Bench]:
    bench = Bench(run_dir)
    yield bench
    bench.close()


class Waiting:
    """In place of processes: threads that look when they are told to, and what they then see."""

    def __init__(self, setup: Setup, processes: int, seconds: float, max_requests: int) -> None:
        self._threads = ThreadPoolExecutor(4)
        self.go, self.setup = threading.Event(), setup

    def start(self) -> None:
        """There is nothing to start."""

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        return self._threads.submit(work)

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        yield from map(work, items)

    def prepare(
        self, url: str, tenant: str, until: float, modality: str, images: int, *, sound: bool
    ) -> Outcome:
        if url == "bug":
            raise KeyError("secret")
        if url.startswith("slow"):
            assert self.go.wait(60)
        source = Source(url.removeprefix("slow "), modality, images, sound=sound)
        return process.prepare(source, self.setup)

    def close(self) -> None:
        self.go.set()
        self._threads.shutdown()


@pytest.fixture
def seeing(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(service, "DecodePool", Waiting)
    bench = Bench(run_dir, EYES, max_queued_requests=2, max_items=3)
    yield bench
    bench.close()


def test_the_handshake_carries_the_facts(bench: Bench) -> None:
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], HelloRequest)
    [hello] = bench.ask(HELLO)
    assert isinstance(hello, Hello) and hello.media == MediaInfo("m", ())
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], Beat)


def test_a_request_without_media_is_prepared(bench: Bench) -> None:
    assert bench.ask(Prepare(3, ())) == [Prepared(3, ())]


def test_media_for_a_text_model_is_refused_by_place(bench: Bench) -> None:
    [answer] = bench.ask(Prepare(3, (ITEM,)))
    assert isinstance(answer, RequestError) and answer.id == 3
    assert (answer.status, answer.code, answer.param) == (400, "unsupported_value", ITEM.param)
    assert answer.message == "The model m does not take image input. It takes text only."


def test_an_image_becomes_a_tensor(seeing: Bench) -> None:
    first, second = picture(40, 30), picture(30, 40)
    [answer] = seeing.ask(Prepare(5, (seen(data_url(first)), seen(data_url(second), 1))))
    assert isinstance(answer, Prepared) and answer.id == 5
    assert [num_tokens(item.tokens) for item in answer.items] == [16, 16]
    assert len({item.digest for item in answer.items}) == 2
    for image, item in zip((first, second), answer.items, strict=True):
        found = np.frombuffer(item.pixels.data, "<f4").reshape(item.pixels.shape)
        assert np.array_equal(found, PROCESSOR(image))
    assert seeing.loop.idle


def test_images_that_no_message_can_carry_are_refused(
    seeing: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that fit are counted; the one too many is named."""
    monkeypatch.setattr(service, "MAX_PIXEL_BYTES", 2 * 4 * 3 * 30 * 30)
    parts = tuple(seen(GOOD, number) for number in range(3))
    assert isinstance(seeing.ask(Prepare(1, parts[:2]))[0], Prepared)
    [answer] = seeing.ask(Prepare(2, parts))
    assert isinstance(answer, RequestError) and answer.code == "image_too_large"
    assert answer.status == 400 and answer.param == "messages[0].content[2]"


def test_an_image_that_cannot_be_read_is_named(seeing: Bench) -> None:
    [answer] = seeing.ask(Prepare(5, (seen(GOOD), seen("data:image/png;base64,aGk=", 1))))
    assert isinstance(answer, RequestError) and answer.id == 5
    assert (answer.status, answer.code) == (400, "invalid_image_format")
    assert answer.param == "messages[0].content[1]"


def test_a_slow_one_delays_nobody(seeing: Bench) -> None:
    """Others overtake it, and so do beats; those that would wait too long are refused at once."""
    seeing.ask(HELLO)
    fast = seeing.ask(Prepare(1, (seen("slow " + GOOD),)), Prepare(2, (seen(GOOD),)))
    assert [message.id for message in fast if isinstance(message, Prepared)] == [2]
    assert isinstance(seeing.ask(Beat("gateway-1", 1))[0], Beat)
    full = seeing.ask(Prepare(3, (seen("slow " + GOOD),)), Prepare(4, (seen(GOOD),)))
    assert isinstance(full[0], RequestError) and full[0].id == 4 and full[0].status == 503
    assert not seeing.loop.idle
    seeing.preprocessor._children.go.set()  # type: ignore[union-attr]
    rest = seeing.ask(count=2)
    assert {message.id for message in rest if isinstance(message, Prepared)} == {1, 3}


def test_too_many_parts_are_refused_before_any_is_looked_at(seeing: Bench) -> None:
    [answer] = seeing.ask(Prepare(1, tuple(seen("bug", i) for i in range(4))))
    assert isinstance(answer, RequestError) and answer.code == "array_above_max_length"
    assert answer.param == "messages[0].content[3]"


def test_a_modality_has_a_limit_of_its_own(run_dir: Path) -> None:
    bench = Bench(run_dir, EYES, limit_mm_per_prompt='{"image": 1}')
    [answer] = bench.ask(Prepare(1, tuple(seen("bug", i) for i in range(3))))
    bench.close()
    assert isinstance(answer, RequestError) and answer.param == "messages[0].content[1]"
    assert answer.message == "2 images are too many: this server takes 1."


def test_a_bug_is_one_refusal_and_the_loop_goes_on(
    seeing: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    [answer] = seeing.ask(Prepare(1, (seen("bug"),)))
    assert isinstance(answer, RequestError) and answer.status == 500
    assert "secret" not in answer.message and "secret" in caplog.text
    assert isinstance(seeing.ask(Prepare(2, (seen(GOOD),)))[0], Prepared)


def test_real_processes_and_the_loop_that_waits(run_dir: Path) -> None:
    bench = Bench(run_dir, EYES, decode_processes=1)
    try:
        until(lambda: bench.client.send(Prepare(1, (seen(GOOD),))))
        answers: list[Message] = []

        def answered() -> bool:
            bench.loop.step()
            answers.extend(received.message for received in bench.client.drain())
            return bool(answers)

        until(answered)
        assert isinstance(answers[0], Prepared)
        assert [num_tokens(item.tokens) for item in answers[0].items] == [16]
    finally:
        bench.close()


def test_another_protocol_is_not_greeted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    old = Hello("gateway", "gateway-1", 1, "0", protocol=0)
    [answer] = bench.ask(old, Beat("gateway-1", 1))
    assert isinstance(answer, HelloRequest) and "upgrade gateway-1" in caplog.text


def test_a_lost_gateway_is_a_stranger_again(bench: Bench) -> None:
    bench.ask(HELLO)
    for tenth in range(60):
        bench.loop.turn(tenth / 10)
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], HelloRequest)


def test_serve_from_start_to_end(stories: Path, run_dir: Path) -> None:
    config = Config(model=str(stories), run_dir=run_dir)
    life = Lifecycle(5.0)
    result = SimpleNamespace(code=-1)

    def run() -> None:
        result.code = serve(config, life)

    thread = threading.Thread(target=run)
    thread.start()
    handshake = ClientHandshake(HELLO)
    with Client(MEDIA, socket_path(run_dir, MEDIA), b"gateway-1") as client:

        def greeted() -> bool:
            due = handshake.due(time.monotonic())
            if due is not None:
                client.send(due)
            return any([handshake.receive(r.message, time.monotonic()) for r in client.drain()])

        until(greeted)
        assert handshake.server is not None and handshake.server.media == MediaInfo("hf", ())
        life.stop()
        thread.join(60)
    assert result.code == 0


def test_a_model_that_hears_alone_takes_no_images_beside_sounds() -> None:
    audio = AudioInput(LogMelChunks(LogMel(), 2), 5, 5, plain, Path(), alone=True)
    model = replace(EYES, modalities=("image", "audio"), audio=audio)
    ready = process.Ready(Blob("float32", (1, 80, 4), b""), b"d" * 32, (1, 4, 0), 1)
    items = (MediaItem("audio", "data:,", "one"), MediaItem("image", "data:,", "two"))
    with pytest.raises(InvalidRequest, match="images and audio in one request") as caught:
        service.prepare(model, Prepare(1, items), iter([ready] * 2))
    assert caught.value.param == "two"
    heard = service.prepare(model, Prepare(1, items[:1]), iter([ready]))
    assert num_tokens(heard.items[0].tokens) == 1
