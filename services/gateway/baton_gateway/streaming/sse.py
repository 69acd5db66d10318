"""Server-sent events: numbered, with keep-alives, stopped on disconnect or when the client stalls.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.errors import BatonError, ServerFault
from baton.logs import logger
from baton_gateway.generation.output import OutputDelta
from baton_gateway.generation.output_queue import DirectSink
from baton_gateway.http.direct_writer import DirectWriter
from baton_gateway.http.disconnect import cancel_tasks, wait_disconnect
from baton_gateway.http.errors import FAULT, GatewayPartitioned, encode

log = logger(__name__)
_COMMENT = b": keep-alive\n\n"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class DirectPath(NamedTuple):
    """Converts deltas to payloads outside the payload generator, with the same result."""

    sink: DirectSink
    payload: Callable[[OutputDelta], bytes | None]
    """Returns the payload; None for a delta that needs no event."""


class EventStream(Response):
    """A response whose body is a sequence of JSON payloads.

    Every event has `id: <name>:<n>`, n counting from `first`. If the payload generator raises, the
    stream ends with one `{"error": ...}` event and no `[DONE]`. The error event has no id, so
    clients resume after the last regular event.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        name: str,
        payloads: AsyncGenerator[bytes, None],
        *,
        keep_alive: float,
        stall: float,
        first: int = 0,
        done: bool = True,
        shortcut: DirectPath | None = None,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._name, self._payloads = name.encode(), payloads
        self._keep_alive, self._stall, self._done = keep_alive, stall, done
        self._count, self._shortcut = first, shortcut
        self._waiting, self._since = False, time.monotonic()
        """Whether the client has unread data, and since when (monotonic seconds)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        watching = asyncio.ensure_future(self._watch(send))
        gone = asyncio.ensure_future(wait_disconnect(receive))
        self._open(DirectWriter.of(scope))
        try:
            await asyncio.wait((writing, watching, gone), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
            elif watching.done():
                watching.result()
                log.warning("a client read nothing for %g s and was cut off", self._stall)
        finally:
            if self._shortcut is not None:
                self._shortcut.sink.close()
            await cancel_tasks(writing, watching, gone)
            await self._payloads.aclose()

    def _open(self, direct: DirectWriter | None) -> None:
        """Let deltas be written directly, if the server supports it."""
        if self._shortcut is None or direct is None:
            return
        outlet, payload = self._shortcut

        def write(delta: OutputDelta) -> bool:
            if not direct.open:
                return False
            if (data := payload(delta)) is not None:
                outlet.write_batch.add(direct, self._frame(data))
                self._since = time.monotonic()
            return True

        outlet.write = write

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for payload in self._payloads:
                await self._event(send, payload)
            if self._done:
                await self._event(send, b"[DONE]")
        except GatewayPartitioned:
            return  # The client can resume a durable stream after its connection has ended.
        except BatonError as error:
            await self._put(send, b"data: %b\n\n" % encode(error))
        except OSError:
            raise
        except Exception:
            log.exception("a stream broke off")
            await self._put(send, b"data: %b\n\n" % encode(ServerFault(FAULT)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _event(self, send: Send, payload: bytes) -> None:
        await self._put(send, self._frame(payload))

    def _frame(self, payload: bytes) -> bytes:
        frame = b"id: %b:%d\ndata: %b\n\n" % (self._name, self._count, payload)
        self._count += 1
        return frame

    async def _put(self, send: Send, frame: bytes) -> None:
        self._since, self._waiting = time.monotonic(), True
        await send({"type": "http.response.body", "body": frame, "more_body": True})
        self._since, self._waiting = time.monotonic(), False

    async def _watch(self, send: Send) -> None:
        """Return when the client has read nothing for too long.

        Sends a comment when the stream is idle. One polling task is cheaper than a timer per event.
        """
        while True:
            for_long = time.monotonic() - self._since
            if not self._waiting and for_long >= self._keep_alive:
                try:
                    async with asyncio.timeout(self._stall):
                        await self._put(send, _COMMENT)
                except TimeoutError:
                    return
            elif self._waiting and for_long >= self._stall:
                return
            rest = (self._stall if self._waiting else self._keep_alive) - for_long
            await asyncio.sleep(max(min(rest, self._stall / 4), 0.001))
