"""The transport rows of the bad-input corpus, over raw sockets, each followed by a good request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from baton_gateway.http.direct_writer import DirectWriter
from baton_gateway.http.protocol import HttpProtocol

LARGE = 32 * 1024 * 1024
GOOD = b"POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"


class Impatient(HttpProtocol):
    """The same protocol with short deadlines and few connections."""

    head_seconds = 0.4
    body_seconds = 0.4
    body_bytes = 4
    unread_seconds = 1.5
    linger_seconds = 0.5
    max_connections = 40


class Patient(HttpProtocol):
    """The same protocol, which drains a rejected connection until its client ends it."""

    linger_seconds = 60.0


class App:
    """Echoes bodies; `/slow` streams until told to stop; `/early` answers before the body."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.left = threading.Event()
        self.served: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        if scope["path"] == "/early":
            return await _reply(send, b"early")
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return self.left.set()
            body += message["body"]
            if not message["more_body"]:
                break
        self.served.append(scope["path"])
        if scope["path"] == "/slow":
            return await self._stream(receive, send)
        if scope["path"] == "/large":
            return await self._large(scope, send)
        await _reply(send, body)

    async def _stream(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        gone = asyncio.ensure_future(receive())
        while not self.go_on.is_set() and not gone.done():
            await asyncio.sleep(0.01)
        if gone.done():
            self.left.set()
        gone.cancel()
        await send({"type": "http.response.body", "body": b"last"})

    async def _large(self, scope: Any, send: Any) -> None:
        """More than the kernel buffers, until it has gone, or been dropped."""
        direct = DirectWriter.of(scope)
        assert direct is not None
        await _reply(send, bytes(LARGE))
        while direct._cycle.transport.get_write_buffer_size():
            await asyncio.sleep(0.01)
        self.left.set()


async def _reply(send: Any, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@dataclass
class Site:
    """A running server."""

    app: App
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self, data: bytes) -> bytes:
        """Send bytes on a new connection and read until the server closes it."""
        with self.connect() as client:
            client.sendall(data)
            return read_all(client)


def read_all(client: socket.socket) -> bytes:
    received = b""
    while True:
        try:
            data = client.recv(65536)
        except ConnectionResetError:
            return received
        if not data:
            return received
        received += data


@pytest.fixture(params=["asyncio", "uvloop"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    yield from _serve(Impatient, request.param)


@pytest.fixture
def patient_site() -> Iterator[Site]:
    yield from _serve(Patient, "asyncio")


def _serve(protocol: type[HttpProtocol], loop: str) -> Iterator[Site]:
    app = App()
    config = uvicorn.Config(
        app, port=0, http=protocol, ws="none", lifespan="off", log_config=None, loop=loop
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield Site(app, server.servers[0].sockets[0].getsockname()[1])
    app.go_on.set()
    server.should_exit = True
    thread.join(timeout=60)
    assert not thread.is_alive()


def check_refused(answer: bytes, status: int, code: str | None) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert int(lines[0].split(b" ")[1]) == status, answer
    assert b"connection: close" in lines
    assert any(line.startswith(b"x-request-id: req_") for line in lines)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)


def check_good(site: Site) -> None:
    assert site.ask(GOOD).endswith(b"\r\n\r\nhi")


def head(
    *lines: bytes, start: bytes = b"POST /echo HTTP/1.1", host: bytes = b"Host: test"
) -> bytes:
    return b"\r\n".join([start, *([host] if host else []), *lines, b"", b""])


MANY = tuple(b"X-%d: a" % i for i in range(300))
TINY = head(b"Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 1_000_000 + b"0\r\n\r\n"

CORPUS: dict[str, tuple[bytes, int, str | None]] = {
    "T05 one header of 64 KiB": (head(b"X: " + b"a" * 65536), 431, "headers_too_large"),
    "T06 300 headers": (head(*MANY), 431, "headers_too_large"),
    "T10 both lengths": (
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
        400,
        None,
    ),
    "T10 two lengths": (head(b"Content-Length: 2", b"Content-Length: 3") + b"hi!", 400, None),
    "T10 unknown coding": (head(b"Transfer-Encoding: gzip") + b"x", 400, None),
    "T12 a million one-byte chunks": (TINY, 400, None),
    "T13 folded header": (head(b"X: a\r\n b"), 400, None),
    "T13 bare line feeds": (b"GET /echo HTTP/1.1\nHost: test\n\n", 400, None),
    "T13 bare line feed after a header": (head(b"X: a\nY: b"), 400, None),
    "T13 NUL": (head(b"X: a\0b"), 400, None),
    "T13 NUL in the path": (head(start=b"GET /\0 HTTP/1.1"), 400, None),
    "T14 URL of 64 KiB": (
        head(start=b"GET /" + b"a" * 65536 + b" HTTP/1.1"),
        414,
        "url_too_long",
    ),
    "T15 slash in the host": (head(host=b"Host: a/b"), 400, None),
    "T15 question mark in the host": (head(host=b"Host: a?b"), 400, None),
    "T15 two hosts": (head(b"Host: b"), 400, None),
    "T17 FOO": (head(start=b"FOO / HTTP/1.1"), 405, "method_not_supported"),
    "T17 TRACE": (head(start=b"TRACE / HTTP/1.1"), 405, "method_not_supported"),
    "T17 CONNECT": (head(start=b"CONNECT a:443 HTTP/1.1"), 405, "method_not_supported"),
    "T18 unknown expectation": (head(b"Expect: tea", b"Content-Length: 2"), 417, None),
    "T20 WebSocket": (
        head(b"Connection: Upgrade", b"Upgrade: websocket", start=b"GET /echo HTTP/1.1"),
        400,
        None,
    ),
    "T24 HTTP/1.0 without a host": (head(start=b"GET /echo HTTP/1.0", host=b""), 400, None),
    "HTTP/1.1 without a host": (head(host=b""), 400, None),
    "HTTP/2 with prior knowledge": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, None),
    "version 2.0": (head(start=b"GET /echo HTTP/2.0"), 505, None),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 405, "method_not_supported"),
    "bad chunk": (head(b"Transfer-Encoding: chunked") + b"zz\r\n", 400, None),
    "percent in the authority": (head(start=b"GET http://[ HTTP/1.1"), 400, None),
}


@pytest.mark.parametrize(("data", "status", "code"), CORPUS.values(), ids=CORPUS.keys())
def test_refuses_with_the_right_body_and_goes_on(
    site: Site, data: bytes, status: int, code: str | None
) -> None:
    check_refused(_ask_stubbornly(site, data), status, code)
    assert site.app.served == []
    check_good(site)


def _ask_stubbornly(site: Site, data: bytes) -> bytes:
    """Send what the server takes; it may stop reading long before the end."""
    with site.connect() as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(data)
        return read_all(client)


def _endless(site: Site, prefix: bytes, piece: bytes) -> tuple[bytes, int]:
    """Send `prefix`, then `piece` for as long as the server takes it."""
    sent = 0
    with site.connect() as client:
        client.sendall(prefix)
        client.settimeout(0.05)
        answer = b""
        while not answer:
            try:
                sent += client.send(piece)
                answer = client.recv(65536)
            except TimeoutError:
                continue
        client.settimeout(60)
        return answer + read_all(client), sent


@pytest.mark.parametrize(
    "prefix",
    [
        head()[:-2] + b"X: ",
        head(b"Transfer-Encoding: chunked") + b"1;",
        head(b"Transfer-Encoding: chunked") + b"1\r\na\r\n0\r\nX: ",
    ],
    ids=["T05 header", "chunk extension", "trailer"],
)
def test_an_endless_token_is_cut_off(patient_site: Site, prefix: bytes) -> None:
    answer, sent = _endless(patient_site, prefix, b"a" * 8192)
    check_refused(answer, 431, "headers_too_large")
    assert sent <= 2 * HttpProtocol.max_head_bytes
    check_good(patient_site)


def test_t09_a_stalled_body_is_a_408(site: Site) -> None:
    check_refused(site.ask(head(b"Content-Length: 10") + b"12345"), 408, "request_timeout")
    assert site.app.left.wait(60)
    check_good(site)


def test_t09_a_dripping_body_is_a_408(site: Site) -> None:
    with site.connect() as client:
        client.sendall(head(b"Content-Length: 100000"))
        client.settimeout(0.15)
        answer = b""
        for _ in range(1000):
            client.sendall(b"x")
            try:
                answer = client.recv(65536)
                break
            except TimeoutError:
                continue
        client.settimeout(60)
        check_refused(answer + read_all(client), 408, "request_timeout")
    check_good(site)


def test_t09_a_client_that_reads_nothing_is_cut_off(site: Site) -> None:
    with site.connect() as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        assert site.app.left.wait(60)
        assert len(read_all(client)) < LARGE
    check_good(site)


def test_t09_a_client_that_reads_slowly_gets_all(site: Site) -> None:
    with site.connect() as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        received = 0
        for _ in range(12):
            received += len(client.recv(LARGE // 512, socket.MSG_WAITALL))
            time.sleep(0.25)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024 * 1024)
        received += len(read_all(client))
    assert received > LARGE


def test_t18_expect_then_nothing_is_ended(site: Site) -> None:
    answer = site.ask(head(b"Expect: 100-continue", b"Content-Length: 10"))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    check_refused(answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"), 408, "request_timeout")
    check_good(site)


@pytest.mark.parametrize("data", [b"", b"\r\n", head()[:-10]], ids=["silent", "blank", "half"])
def test_t19_a_late_head_is_closed(site: Site, data: bytes) -> None:
    slow = [site.connect() for _ in range(30)]
    for client in slow:
        client.sendall(data)
    check_good(site)
    assert [read_all(client) for client in slow] == [b""] * 30
    for client in slow:
        client.close()
    check_good(site)


def test_blank_lines_do_not_keep_a_connection(site: Site) -> None:
    with site.connect() as client:
        client.settimeout(0.1)
        for _ in range(100):
            try:
                client.sendall(b"\r\n")
                assert client.recv(1) == b""
                break
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
        else:
            pytest.fail("the connection stayed open")
    check_good(site)


def test_keep_alive_serves_one_request_after_another(site: Site) -> None:
    request = head(b"Content-Length: 2") + b"hi"
    with site.connect() as client:
        for _ in range(3):
            client.sendall(request)
            answer = b""
            while not answer.endswith(b"hi"):
                answer += client.recv(65536)
    assert site.app.served == ["/echo"] * 3


def test_pipelined_requests_are_answered_in_order(site: Site) -> None:
    pieces = [head(b"Content-Length: 1") + b"%d" % i for i in range(5)]
    answer = site.ask(b"".join([*pieces, GOOD]))
    bodies = [part[:1] for part in answer.split(b"\r\n\r\n")[1:]]
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"h"]


def test_pipelining_is_bounded(site: Site) -> None:
    with site.connect() as client:
        client.sendall(head(start=b"GET /slow HTTP/1.1") + head() * 100)
        received = client.recv(65536)
        site.app.go_on.set()
        received += read_all(client)
    assert received.count(b"HTTP/1.1 200") == 1
    assert b"last" in received
    check_good(site)


def test_bad_bytes_after_a_good_request_do_not_cut_its_answer(site: Site) -> None:
    with site.connect() as client:
        client.sendall(head(start=b"GET /slow HTTP/1.1"))
        received = b""
        while b"first" not in received:
            received += client.recv(65536)
        client.sendall(b"\0\0\0 nonsense\r\n\r\n")
        time.sleep(0.2)  # usually long enough for the nonsense to arrive before the answer's end
        site.app.go_on.set()
        received += read_all(client)
    assert b"first\r\n4\r\nlast\r\n0\r\n\r\n" in received
    check_good(site)


def test_a_client_that_leaves_a_pipeline_ends_the_running_request(site: Site) -> None:
    """One that closes its side for writing alone cannot be told from one that has left."""
    for leave in (lambda client: client.shutdown(socket.SHUT_WR), lambda client: client.close()):
        site.app.left.clear()
        with site.connect() as client:
            client.sendall(head(start=b"GET /slow HTTP/1.1") + head(b"Content-Length: 5") + b"hi")
            assert b"200" in client.recv(65536)
            leave(client)
            assert site.app.left.wait(60)
    assert "/echo" not in site.app.served
    check_good(site)


def test_http_1_0_has_no_chunks(site: Site) -> None:
    site.app.go_on.set()
    for version, ending in ((b"1.0", b"\r\n\r\nfirstlast"), (b"1.1", b"0\r\n\r\n")):
        answer = site.ask(head(b"Connection: close", start=b"GET /slow HTTP/" + version))
        assert answer.endswith(ending), answer
        assert (b"chunked" in answer) == (version == b"1.1")


def test_an_early_answer_ends_the_connection(site: Site) -> None:
    with site.connect() as client:
        client.sendall(head(b"Content-Length: 1000000", start=b"POST /early HTTP/1.1") + b"abc")
        assert read_all(client).endswith(b"early")
    check_good(site)


def test_a_client_that_goes_on_sending_reads_its_early_answer(patient_site: Site) -> None:
    """A reset would make the client's system discard the answer."""
    with patient_site.connect() as client:
        client.sendall(head(b"Content-Length: 1000000", start=b"POST /early HTTP/1.1"))
        client.sendall(b"x" * 1_000_000)
        answer = b""
        while data := client.recv(65536):
            answer += data
    assert answer.lower().count(b"connection: close") == 1 and answer.endswith(b"early")
    check_good(patient_site)


def test_an_offer_of_http2_is_ignored_and_the_body_kept(site: Site) -> None:
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
    with site.connect() as client:
        client.sendall(head(*offer, b"Content-Length: 5") + b"hel")
        client.sendall(b"lo")
        answer = b""
        while not answer.endswith(b"hello"):
            answer += client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200")
    check_good(site)


def test_trailers_do_not_become_headers(site: Site) -> None:
    data = head(b"Transfer-Encoding: chunked", b"Connection: close")
    assert site.ask(data + b"2\r\nhi\r\n0\r\nAuthorization: x\r\n\r\n").endswith(b"hi")


def test_connections_are_bounded(site: Site) -> None:
    held = [site.connect() for _ in range(Impatient.max_connections)]
    answer = site.ask(b"")
    assert answer.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "server_is_overloaded"
    for client in held:
        client.close()
    _eventually(lambda: site.ask(GOOD).endswith(b"hi"))


def _eventually(holds: Callable[[], bool]) -> None:
    for _ in range(100):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail("it never came true")
