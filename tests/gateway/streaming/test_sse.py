"""Event streams with clients that read, disconnect or stall."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from baton.errors import Unavailable
from baton_gateway.http.direct_writer import DirectWriter
from baton_gateway.http.errors import GatewayPartitioned
from baton_gateway.streaming.event_frames import NumberedFrames
from baton_gateway.streaming.sse import EventStream
from tests.fakes.listening import listening


class Client:
    """The server's side of a connection, as ASGI shows it."""

    def __init__(self, *, stuck_after: int = 10**9) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self._stuck_after = stuck_after

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if len(self.sent) >= self._stuck_after:
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent)

    @property
    def complete(self) -> bool:
        return self.sent[-1].get("more_body") is False


def test_a_stream_that_goes_on_elsewhere_ends_without_an_end() -> None:
    """No error and no `[DONE]`: the connection is closed, as by a gateway that has died."""
    client, source = Client(), Source(2, error=GatewayPartitioned())

    async def main() -> None:
        stream = EventStream(source.payloads(), NumberedFrames("s"), keep_alive=9.0, stall=9.0)
        await stream({"type": "http"}, client.receive, client.send)  # type: ignore[arg-type]

    asyncio.run(main())
    assert client.body.endswith(b"data: 1\n\n") and not client.complete
    assert source.closed


class Source:
    """Payloads, and whether they were told that nobody listens any more."""

    def __init__(
        self, count: int, *, error: Exception | None = None, wait: float | None = 0.0
    ) -> None:
        self.closed = False
        self._count, self._error, self._wait = count, error, wait

    async def payloads(self) -> AsyncGenerator[bytes, None]:
        try:
            for i in range(self._count):
                yield b"%d" % i
                if self._wait is not None:
                    await asyncio.sleep(self._wait)
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


async def _play(client: Client, source: Source, **fields: Any) -> None:
    given: dict[str, Any] = {"keep_alive": 60.0, "stall": 60.0}
    stream = EventStream(source.payloads(), NumberedFrames("s"), **(given | fields))
    await stream({"type": "http"}, client.receive, client.send)


def test_whole_stream() -> None:
    async def main() -> None:
        client, source = Client(), Source(2)
        await _play(client, source)
        assert client.sent[0]["status"] == 200
        assert client.body == b"id: s:0\ndata: 0\n\nid: s:1\ndata: 1\n\nid: s:2\ndata: [DONE]\n\n"
        assert client.complete and source.closed

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("Gone.", code="x"), b'"code":"x"'),
        (KeyError("secret"), b'"code":"internal_error"'),
    ],
)
def test_error_is_one_event_and_no_done(error: Exception, code: bytes) -> None:
    async def main() -> None:
        client, source = Client(), Source(1, error=error)
        await _play(client, source)
        frames = client.body.split(b"\n\n")
        assert frames[1].startswith(b'data: {"error":{"message":') and code in frames[1]
        assert b"DONE" not in client.body and b"secret" not in client.body
        assert client.complete and source.closed

    asyncio.run(main())


def test_client_that_leaves_stops_the_source_at_once() -> None:
    async def main() -> None:
        client, source = Client(), Source(1000, wait=30.0)
        playing = asyncio.create_task(_play(client, source))
        while len(client.sent) < 2:
            await asyncio.sleep(0)
        client.gone.set()
        await playing
        assert source.closed and not client.complete

    asyncio.run(main())


def test_client_that_stops_reading_is_cut_off() -> None:
    async def main() -> None:
        client, source = Client(stuck_after=3), Source(10**6, wait=None)
        await _play(client, source, stall=0.1)
        assert source.closed and not client.complete and len(client.sent) == 3

    asyncio.run(main())


async def test_a_client_that_was_cut_off_leaves_no_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its unread data is dropped, and that an answer has no end is no error."""
    transports: list[Any] = []
    over = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        direct, source = DirectWriter.of(scope), Source(10**9, wait=None)
        assert direct is not None
        transports.append(direct._cycle.transport)
        stream = EventStream(source.payloads(), NumberedFrames("s"), keep_alive=9.0, stall=0.2)
        await stream(scope, receive, send)
        over.set()

    with caplog.at_level(logging.ERROR):
        async with listening(app) as at:
            host, _, port = at.partition(":")
            with socket.create_connection((host, int(port))) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
                await over.wait()
                await asyncio.sleep(0)
                assert transports[0].get_write_buffer_size() == 0
    assert not caplog.records


def test_slow_source_is_kept_alive() -> None:
    async def main() -> None:
        client, source = Client(), Source(2, wait=0.2)
        await _play(client, source, keep_alive=0.05)
        between = client.body.split(b"data: 0\n\n")[1].split(b"id: s:1")[0]
        assert between.startswith(b": keep-alive\n\n") and not between.strip(b": kep-aliv\n")
        assert b"keep-alive" not in client.body[client.body.index(b"[DONE]") :]

    asyncio.run(main())
