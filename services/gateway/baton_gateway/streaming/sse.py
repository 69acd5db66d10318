"""Server-sent events: with keep-alives, stopped on disconnect or when the client stalls.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.errors import BatonError, ServerFault
from baton.logs import logger
from baton_gateway.http.direct_writer import DirectWriter
from baton_gateway.http.disconnect import cancel_tasks, wait_disconnect
from baton_gateway.http.errors import FAULT, ErrorEncoder, GatewayPartitioned, encode
from baton_gateway.streaming.direct_sink import DirectSink
from baton_gateway.streaming.event_frames import KEEP_ALIVE, EventFrames

log = logger(__name__)
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class EventStream(Response):
    """A response whose body is a sequence of JSON payloads.

    If the payload generator raises, the stream ends with one error event and no
    `[DONE]`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        payloads: AsyncGenerator[bytes, None],
        frames: EventFrames,
        *,
        keep_alive: float,
        stall: float,
        done: bool = True,
        encoder: ErrorEncoder = encode,
        sink: DirectSink | None = None,
    ) -> None:
        """With `done`, the last event is `[DONE]`. `sink` writes events without `payloads`; it
        shares `frames`."""
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._payloads, self._frames, self._sink = payloads, frames, sink
        self._keep_alive, self._stall, self._done = keep_alive, stall, done
        self._encoder = encoder
        self._waiting, self._since = False, time.monotonic()
        """Whether the client has unread data, and since when (monotonic seconds)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        watching = asyncio.ensure_future(self._watch(send))
        disconnect = asyncio.ensure_future(wait_disconnect(receive))
        try:
            await asyncio.wait((writing, watching, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
            elif watching.done():
                watching.result()
                log.warning("a client read nothing for %g s and was cut off", self._stall)
                if (direct := DirectWriter.of(scope)) is not None:
                    direct.cut()
        finally:
            if self._sink is not None:
                self._sink.close()
            await cancel_tasks(writing, watching, disconnect)
            await self._payloads.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for payload in self._payloads:
                await self._put(send, self._frames.event(payload))
            if self._done:
                await self._put(send, self._frames.event(b"[DONE]"))
        except GatewayPartitioned:
            return  # The client can resume a durable stream after its connection has ended.
        except BatonError as error:
            await self._put(send, self._frames.error(self._encoder(error)))
        except OSError:
            raise
        except Exception:
            log.exception("a stream broke off")
            await self._put(send, self._frames.error(self._encoder(ServerFault(FAULT))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _put(self, send: Send, frame: bytes) -> None:
        self._since, self._waiting = time.monotonic(), True
        await send({"type": "http.response.body", "body": frame, "more_body": True})
        self._since, self._waiting = time.monotonic(), False

    @property
    def _quiet(self) -> float:
        """Seconds since the last event, written on either path."""
        since = self._since if self._sink is None else max(self._since, self._sink.written)
        return time.monotonic() - since

    async def _watch(self, send: Send) -> None:
        """Return when the client has not read for too long.

        Sends a comment when the stream is idle. One polling task is cheaper than a timer per event.
        """
        while True:
            quiet = self._quiet
            if not self._waiting and quiet >= self._keep_alive:
                try:
                    async with asyncio.timeout(self._stall):
                        await self._put(send, KEEP_ALIVE)
                except TimeoutError:
                    return
            elif self._waiting and quiet >= self._stall:
                return
            remaining = (self._stall if self._waiting else self._keep_alive) - quiet
            await asyncio.sleep(max(min(remaining, self._stall / 4), 0.001))
