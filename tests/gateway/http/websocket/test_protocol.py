"""A WebSocket on a real socket, over an application that echoes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from baton_gateway.http.websocket.protocol import GOING_AWAY, MAX_FRAGMENTS
from tests.fakes.listening import listening


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Echoes until a disconnect, whose code it sends; refuses where `?no` is asked."""
    assert (scope["type"], (await receive())["type"]) == ("websocket", "websocket.connect")
    if scope["query_string"]:
        await send({"type": "websocket.http.response.start", "status": 418, "headers": []})
        return await send({"type": "websocket.http.response.body", "body": b"no"})
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
    await send({"type": "websocket.send", "text": str(message["code"])})
    await send({"type": "websocket.close", "code": 1000})


async def test_a_drain_is_told_and_a_refusal_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    stop = asyncio.Event()
    with caplog.at_level(logging.WARNING):
        async with listening(app, stop) as at, connect(f"ws://{at}/v1/realtime") as socket:
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://{at}/v1/realtime?no")
            assert (refused.value.response.status_code, refused.value.response.body) == (418, b"no")
            await socket.send("hello")
            assert await socket.recv() == "hello"
            stop.set()
            assert await socket.recv() == str(GOING_AWAY)
            with pytest.raises(ConnectionClosed):
                await socket.recv()
    assert not caplog.records


HEAD = ["GET /v1/realtime HTTP/1.1", "Host: a", "Upgrade: websocket", "Connection: Upgrade"]
HEAD += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDAwMDAwMDAwMDAwMDAwMA=="]


@asynccontextmanager
async def frames(at: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection after its handshake, for frames as they are."""
    host, _, port = at.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join([*HEAD, "", ""]).encode())
    assert b"101" in await reader.readuntil(b"\r\n\r\n")
    yield reader, writer
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x81\0", 1002),
        (b"\x81\x81\0\0\0\0\xff", 1007),
        (b"\x01\x80\0\0\0\0" + b"\0\x80\0\0\0\0" * (MAX_FRAGMENTS + 9), 1009),
    ],
)
async def test_a_frame_that_breaks_the_rules_is_no_error(
    sent: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One without a mask, text that is not UTF-8, and a message of endless empty frames."""
    with caplog.at_level(logging.WARNING):
        async with listening(app) as at, frames(at) as (reader, writer):
            writer.write(sent)
            closed = await reader.read()
            assert closed[0] == 0x88 and int.from_bytes(closed[2:4], "big") == code
    assert not caplog.records


async def test_a_client_that_does_not_read_its_pongs_is_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pings = (b"\x89\xfd\0\0\0\0" + bytes(125)) * 8192
    with caplog.at_level(logging.WARNING):
        async with listening(app) as at, frames(at) as (reader, writer):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            with pytest.raises(ConnectionError):
                for _ in range(100):
                    writer.write(pings)
                    await writer.drain()
    assert not caplog.records


async def test_bytes_before_the_answer_are_refused() -> None:
    async with listening(app) as at:
        host, _, port = at.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = ["GET /v1/realtime HTTP/1.1", "Host: a", "Upgrade: websocket"]
        lines += ["Connection: Upgrade", "Sec-WebSocket-Version: 13", "", "early"]
        writer.write("\r\n".join(lines).encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()
        await writer.wait_closed()
