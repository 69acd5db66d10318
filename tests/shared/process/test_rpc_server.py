"""The loop of a stateless service over a real socket, with a service that does as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from baton.errors import InvalidRequest, SettingsError
from baton.net.discovery import socket_path
from baton.net.sockets import Client, Received, Server
from baton.net.topology import TOKENIZE
from baton.process import rpc_server
from baton.process.lifecycle import Lifecycle
from baton.process.rpc_server import Deferred, RpcServer, attempt, refusal
from baton.protocol import (
    Beat,
    Decode,
    DecodedText,
    Detokenize,
    Detokenized,
    Envelope,
    Hello,
    HelloRequest,
    Message,
    RequestError,
    Vocabulary,
)
from baton.settings import Settings
from tests.fakes.random_messages import Inbox

ME = Hello("tokenizer", "tokenizer-1", 7, "0")
GATEWAY = Hello("gateway", "gateway-1", 1, "0")
STATE = Decode(b"", b"", b"", b"", b"")


class Told:
    """Answers `Vocabulary` at once, an even `Detokenize` in its turn, an odd one when told to."""

    def __init__(self) -> None:
        self.idle, self.closed = True, False
        self.forgotten: list[bytes] = []
        self.submitted: list[tuple[Callable[[], Message], Future[Message]]] = []

    def handle(self, received: Received) -> Message | Deferred:
        match received.message:
            case Decode():
                return DecodedText(b"", b"", (), unknown=received.peer)
            case Vocabulary(id=number):
                return self.answer(number)
            case Detokenize(id=number):
                return Deferred(lambda: self.answer(number), self.submit if number % 2 else None)
            case message:
                raise AssertionError(message)

    def answer(self, number: int) -> Message:
        if number >= 90:
            raise InvalidRequest("no", code="c", param="p", status=422)
        if number >= 80:
            raise KeyError("secret path")
        return Detokenized(number, "")

    def submit(self, compute: Callable[[], Message]) -> Future[Message]:
        future = Future[Message]()
        self.submitted.append((compute, future))
        return future

    def finish(self, index: int = 0) -> None:
        compute, future = self.submitted.pop(index)
        future.set_result(compute())

    def forget(self, peer: bytes) -> None:
        self.forgotten.append(peer)

    def close(self) -> None:
        self.closed = True


class Bench:
    """The loop and one client, driven turn by turn."""

    def __init__(self, folder: Path) -> None:
        address = socket_path(folder, TOKENIZE)
        self.service, self.server = Told(), Server(TOKENIZE, address)
        self.loop = RpcServer(self.service, ME, self.server, max_queued_requests=3)
        self.client = Client(TOKENIZE, address, b"gateway-1")

    def send(self, *messages: Message, trace: str = "t") -> None:
        for message in messages:
            until(lambda message=message: self.client.send(message, Envelope(trace=trace)))

    def receive(self, count: int) -> list[Received]:
        found: list[Received] = []

        def turn() -> bool:
            self.loop.turn(0.0)
            found.extend(self.client.drain())
            return len(found) >= count

        until(turn)
        return found

    def ask(self, *messages: Message, count: int | None = None) -> list[Message]:
        self.send(*messages)
        return [r.message for r in self.receive(len(messages) if count is None else count)]


def until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.001)


@pytest.fixture
def bench(run_dir: Path) -> Iterator[Bench]:
    bench = Bench(run_dir)
    yield bench
    bench.client.close()
    bench.server.close()


def numbers(messages: list[Message]) -> list[int]:
    return [m.id for m in messages if isinstance(m, Detokenized | RequestError)]


def test_a_handshake_is_answered_without_the_service(bench: Bench) -> None:
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], HelloRequest)
    assert bench.ask(GATEWAY) == [ME]
    assert isinstance(bench.ask(Beat("gateway-1", 1))[0], Beat)


def test_replies_carry_the_envelope_of_their_request_and_handshakes_none(bench: Bench) -> None:
    bench.send(Vocabulary(1), trace="one")
    bench.send(Detokenize(2, b""), trace="two")
    bench.send(Detokenize(3, b""), trace="three")
    found = bench.receive(2)
    bench.send(GATEWAY, trace="hello")
    found += bench.receive(1)  # What came before it has been taken.
    bench.service.finish()
    found += bench.receive(1)
    assert [r.envelope.trace for r in found] == ["one", "two", "", "three"]


def test_one_queued_reply_a_turn_and_those_at_once_before_them() -> None:
    inbox = Inbox()
    loop = RpcServer(Told(), ME, cast(Server, inbox), max_queued_requests=3)
    for message in (Detokenize(0, b""), Detokenize(2, b""), Vocabulary(1), STATE):
        inbox.put(b"g", message)
    loop.turn(0.0)
    sent = [message for _, message in inbox.sent]
    assert isinstance(sent[1], DecodedText) and numbers(sent) == [1, 0] and not loop.idle
    loop.turn(0.0)
    assert inbox.sent[-1] == (b"g", Detokenized(2, "")) and loop.idle


def test_replies_of_threads_come_as_they_are_done(bench: Bench) -> None:
    bench.send(Detokenize(1, b""), Detokenize(3, b""))
    until(lambda: bench.loop.turn(0.0) or len(bench.service.submitted) == 2)
    assert not bench.loop.idle
    bench.service.finish(1)
    assert numbers(bench.ask(count=1)) == [3]
    bench.service.finish()
    assert numbers(bench.ask(count=1)) == [1] and bench.loop.idle


def test_overload_is_refused_at_once_and_spares_what_does_not_wait(bench: Bench) -> None:
    found = bench.ask(*(Detokenize(n, b"") for n in (1, 3, 5, 7)), Vocabulary(2), STATE, count=3)
    refused, answered, decoded = found
    assert isinstance(refused, RequestError) and refused.id == 7
    assert (refused.status, refused.code) == (503, "server_is_overloaded")
    assert answered == Detokenized(2, "") and isinstance(decoded, DecodedText)


def test_failures_are_refusals_and_the_loop_goes_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(Detokenize(81, b""), Detokenize(91, b""))
    until(lambda: bench.loop.turn(0.0) or len(bench.service.submitted) == 2)
    bench.service.finish()
    bench.service.finish()
    found = bench.ask(Vocabulary(80), Vocabulary(90), Detokenize(82, b""), count=5)
    errors = {m.id: m for m in found if isinstance(m, RequestError)}
    assert set(errors) == {80, 81, 82, 90, 91}
    for number in (80, 81, 82):
        assert errors[number].status == 500 and "secret" not in errors[number].message
    for number in (90, 91):
        assert errors[number] == RequestError(number, "c", "no", "p", 422)
    assert caplog.text.count("secret path") >= 3
    assert bench.ask(Vocabulary(1)) == [Detokenized(1, "")]


def test_errors_become_messages() -> None:
    request, error = Vocabulary(3), InvalidRequest("no", code="c", param="p", status=422)
    assert refusal(request, error) == RequestError(3, "c", "no", "p", 422)

    def fail() -> Message:
        raise error

    assert attempt("x", request, fail) == refusal(request, error)


def test_lost_and_restarted_clients_are_forgotten(bench: Bench) -> None:
    bench.ask(GATEWAY)
    bench.ask(Hello("gateway", "gateway-1", 2, "0"))
    assert bench.service.forgotten == [b"gateway-1"]
    for tenth in range(60):
        bench.loop.turn(tenth / 10)
    assert bench.service.forgotten == [b"gateway-1"] * 2
    assert isinstance(bench.ask(Beat("gateway-1", 2))[0], HelloRequest)


def test_another_protocol_is_not_greeted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    old = Hello("gateway", "gateway-1", 1, "0", protocol=0)
    [answer] = bench.ask(old, Beat("gateway-1", 1), count=1)
    assert isinstance(answer, HelloRequest) and "upgrade gateway-1" in caplog.text


def test_a_draining_process_is_withdrawn_and_serves_until_it_is_idle(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Place:
        def announce(self, *place: object) -> None:
            events.append("announced")

        def close(self) -> None:
            events.append("withdrawn")

    monkeypatch.setattr(rpc_server, "directory", lambda config: Place())
    service, life, config = Told(), Lifecycle(20.0), Settings(run_dir=run_dir)
    service.idle = False

    def run() -> None:
        rpc_server.serve(
            service, ME, TOKENIZE, config, life, bind="", advertise="", max_queued_requests=3
        )

    thread = threading.Thread(target=run)
    thread.start()
    with Client(TOKENIZE, socket_path(run_dir, TOKENIZE), b"gateway-1") as client:
        until(lambda: client.send(Vocabulary(1)))
        until(lambda: bool(list(client.drain())))
        assert events == ["announced"]
        life.stop()
        until(lambda: events == ["announced", "withdrawn"])
        client.send(Vocabulary(2))
        until(lambda: bool(list(client.drain())))
        assert thread.is_alive() and not service.closed
        service.idle = True
        thread.join(60)
    assert not thread.is_alive() and service.closed


def test_a_service_is_closed_when_its_address_cannot_be_bound(run_dir: Path) -> None:
    service, config = Told(), Settings(run_dir=run_dir)
    with pytest.raises(SettingsError, match=r"tcp://0\.0\.0\.0:1"):
        rpc_server.serve(
            service, ME, TOKENIZE, config, Lifecycle(1.0),
            bind="tcp://0.0.0.0:1", advertise="", max_queued_requests=3,
        )  # fmt: skip
    assert service.closed
