"""Server-sent events: numbered, kept alive, cut off when nobody reads, stopped when nobody listens.

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
from baton_gateway.client import departure, stop
from baton_gateway.errors import FAULT, encode

log = logger(__name__)
_COMMENT = b": keep-alive\n\n"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class EventStream(Response):
    """A response whose body is a sequence of JSON payloads.

    Every event carries `id: <name>:<n>`, n counting from 0. A payload source that raises ends
    the stream with one `{"error": ...}` event and without `[DONE]`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        name: str,
        payloads: AsyncGenerator[bytes, None],
        *,
        keep_alive: float,
        stall: float,
        done: bool = True,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._name, self._payloads = name.encode(), payloads
        self._keep_alive, self._stall, self._done = keep_alive, stall, done
        self._count = 0
        self._sent = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(send))
        breathing = asyncio.ensure_future(self._breathe(send))
        gone = asyncio.ensure_future(departure(receive))
        try:
            await asyncio.wait((writing, gone), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        except TimeoutError:
            log.warning("a client read nothing for %g s and was cut off", self._stall)
        finally:
            await stop(writing, breathing, gone)
            await self._payloads.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for payload in self._payloads:
                await self._event(send, payload)
            if self._done:
                await self._event(send, b"[DONE]")
        except BatonError as error:
            await self._event(send, encode(error))
        except (TimeoutError, OSError):
            raise
        except Exception:
            log.exception("a stream broke off")
            await self._event(send, encode(ServerFault(FAULT)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _event(self, send: Send, payload: bytes) -> None:
        """Send one event, and raise `TimeoutError` when the client takes nothing for too long."""
        frame = b"id: %b:%d\ndata: %b\n\n" % (self._name, self._count, payload)
        self._count += 1
        async with asyncio.timeout(self._stall):
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        self._sent = time.monotonic()

    async def _breathe(self, send: Send) -> None:
        """Send a comment whenever the stream has said nothing for a while."""
        while True:
            rest = self._sent + self._keep_alive - time.monotonic()
            await asyncio.sleep(max(rest, 0.001))
            if time.monotonic() - self._sent >= self._keep_alive:
                await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
                self._sent = time.monotonic()
