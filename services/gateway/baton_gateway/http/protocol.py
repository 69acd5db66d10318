"""HTTP/1.1 protocol based on uvicorn's, with limits on every size and every wait.

llhttp (used by httptools) already rejects request smuggling: conflicting lengths, folded headers,
bare line feeds, NUL. This module adds limits on the head and the body's chunking, time-outs for
slow clients, and OpenAI's error body. After an error response the connection is half-closed and
drained briefly, because the kernel would discard the response if the socket were closed with unread
bytes.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import termios
from array import array
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from baton.errors import BatonError, InvalidRequest, Unavailable
from baton.logs import logger
from baton_gateway.http.direct_writer import DirectWriter
from baton_gateway.http.errors import respond
from baton_gateway.http.websocket.handshake import check_upgrade

METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS")
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]+")
"""RFC 3986 host and port: no slash, question mark or at-sign, which confuse URL parsers."""
_SMALL = 64
"""Size in bytes below which a body chunk counts as small."""

_READER_CHECKS = 4
"""A stall of this process passes for one of these checks, not for a client that reads nothing."""

log = logger(__name__)


class Stage(Enum):
    """State of the parser."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class HttpProtocol(HttpToolsProtocol):
    """One connection. Subclasses may override the limits."""

    max_url_bytes: ClassVar[int] = 8 * 1024
    max_head_bytes: ClassVar[int] = 32 * 1024
    max_headers: ClassVar[int] = 100
    max_small_pieces: ClassVar[int] = 4096
    """Most body chunks under 64 bytes; a million one-byte chunks would cost a second of CPU
    time."""
    max_pipelined: ClassVar[int] = 8
    """Most pipelined requests that wait behind a running one."""
    max_connections: ClassVar[int] = 4096
    head_seconds: ClassVar[float] = 10.0
    """Time limit for the complete head of a request, from its first byte."""
    body_seconds: ClassVar[float] = 10.0
    body_bytes: ClassVar[int] = 1024
    """Minimum number of body bytes per `body_seconds`."""
    unread_seconds: ClassVar[float] = 30.0
    """A client that reads nothing for this long while data waits for it is cut off."""
    linger_seconds: ClassVar[float] = 2.0
    """How long to drain a rejected connection, so that the client can read the response."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stage = Stage.IDLE
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        """Ends the connection while the client does not read."""
        self._unread_bytes = 0
        self._quiet_checks = 0
        self._running: RequestResponseCycle | None = None
        self._ended = False
        self._early = False
        """Whether the running request is answered before its body was read."""
        self._stopped_at_upgrade = False
        self._head_bytes = 0
        self._quiet_bytes = 0
        self._body_bytes = 0
        self._small_pieces = 0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(self.head_seconds, self._end)
        if len(self.connections) > 2 * self.max_connections:
            transport.abort()
        elif len(self.connections) > self.max_connections:
            self._refuse(Unavailable("Too many connections are open.", retry_after=1))

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._stop_watching()
        if self._running is not None:
            # uvicorn notifies only the newest request, which with pipelining is not the running
            # one.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._unset_keepalive_if_required()
        if self._stage is Stage.IDLE and self._deadline is None:
            self._arm(self.head_seconds, self._end)
        self._quiet_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(_explain(error))
        else:
            self._check_quiet()

    def _check_quiet(self) -> None:
        """Limit the bytes of a header, trailer or chunk extension that the parser buffers."""
        if self._stage is not Stage.IDLE and self._quiet_bytes > self.max_head_bytes:
            self._refuse(_head_too_large())

    # What the client does not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def _watch_reader(self) -> None:
        self._unread_bytes = self._count_unread()
        self._quiet_checks = 0
        self._check_reader_later()

    def _check_reader_later(self) -> None:
        seconds = self.unread_seconds / _READER_CHECKS
        self._reading = self.loop.call_later(seconds, self._check_reader)

    def _check_reader(self) -> None:
        """Cut the connection if nothing was read; it would stay, closed or not, with its data."""
        if self._count_unread() < self._unread_bytes:
            return self._watch_reader()
        self._quiet_checks += 1
        if self._quiet_checks < _READER_CHECKS:
            return self._check_reader_later()
        log.warning("a client read nothing for %g s and was cut off", self.unread_seconds)
        self.transport.abort()

    def _count_unread(self) -> int:
        """Number of bytes that the client has not acknowledged. The kernel takes megabytes at a
        time, so the transport's own buffer says nothing of a slow client for minutes."""
        unsent = array("i", [0])
        fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, unsent)
        return self.transport.get_write_buffer_size() + unsent[0]

    def _stop_watching(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    # Parser callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stage = Stage.HEAD
        self._arm(self.head_seconds, self._end)
        self._head_bytes = self._quiet_bytes = self._small_pieces = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._quiet_bytes = 0
        if len(self.url) > self.max_url_bytes:
            raise InvalidRequest("The URL is too long.", code="url_too_long", status=414)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._quiet_bytes = 0
        self._head_bytes += len(name) + len(value) + 4
        if self._stage is Stage.HEAD:  # A trailer must not become a header.
            super().on_header(name, value)
        if self._head_bytes > self.max_head_bytes or len(self.headers) > self.max_headers:
            raise _head_too_large()

    def on_headers_complete(self) -> None:
        self._stage = Stage.BODY
        self._quiet_bytes = self._body_bytes = 0
        self._check_head()
        self._stopped_at_upgrade = self.parser.should_upgrade()
        if self._stopped_at_upgrade:
            return
        self._arm(self.body_seconds, self._check_pace)
        super().on_headers_complete()
        if len(self.pipeline) > self.max_pipelined:
            raise InvalidRequest("Too many requests were sent without waiting for an answer.")

    def on_body(self, body: bytes) -> None:
        self._quiet_bytes = 0
        self._body_bytes += len(body)
        self._small_pieces += len(body) < _SMALL
        if self._small_pieces > self.max_small_pieces:
            raise InvalidRequest("The body came in too many tiny pieces.")
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._stopped_at_upgrade:
            return
        self._stage = Stage.IDLE
        self._disarm()
        super().on_message_complete()

    def _check_head(self) -> None:
        """Reject heads that no route accepts. Raises `InvalidRequest`."""
        if self.parser.get_method() not in METHODS:
            raise _unknown_method()
        if self.parser.get_http_version() not in {"1.0", "1.1"}:
            raise InvalidRequest("Only HTTP/1.1 is spoken here.", status=505)
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            raise InvalidRequest("Exactly one valid Host header is required.")
        if any(name == b"expect" and not self.expect_100_continue for name, _ in self.headers):
            raise InvalidRequest("Only 'Expect: 100-continue' is supported.", status=417)
        if self._wants_websocket():
            check_upgrade(self.parser.get_method(), self.url, self.headers)

    def _wants_websocket(self) -> bool:
        return self.parser.should_upgrade() and self._get_upgrade() == b"websocket"

    def _after_upgrade(self, rest: bytes) -> None:
        """Continue after a head that offers another protocol: as a WebSocket, or ignoring the
        offer."""
        if not self._wants_websocket():
            self._replay_without_upgrade(rest)
        elif rest or self.pipeline or not (self.cycle is None or self.cycle.response_complete):
            self._refuse(InvalidRequest("Wait for the answer before you send more."))
        else:
            self._disarm()
            self.scope["method"] = "GET"
            self.handle_websocket_upgrade()

    def _replay_without_upgrade(self, rest: bytes) -> None:
        """Ignore an offer to upgrade to HTTP/2 (RFC 9110 7.8), which Java's client sends by
        default.

        llhttp stops at an upgrade and would lose the body, so a new parser reads the same head
        without the offer, then `rest`.
        """
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        offer = {b"connection", b"upgrade", b"http2-settings"}
        head += [name + b": " + value for name, value in self.headers if name not in offer]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([*head, b"", b""]) + rest)

    # Requests and responses

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        DirectWriter(cycle).offer(cycle.scope)
        super()._start_asgi_task(cycle, partial(self._run, cycle, app))

    async def _run(
        self, cycle: RequestResponseCycle, app: Any, scope: Any, receive: Any, send: Any
    ) -> None:
        """Run the application. A response before the end of the body closes the connection, since
        the rest is not read. HTTP/1.0 has no chunked bodies (RFC 9112 6.1), so a response of
        unknown length ends with its connection there."""
        unframed = False

        async def announce(message: Any) -> None:
            nonlocal unframed
            if message["type"] == "http.response.start":
                self._early = cycle.more_body
                cycle.keep_alive = cycle.keep_alive and not self._early
                unframed = scope["http_version"] == "1.0" and not _has_length(message)
                cycle.chunked_encoding = False if unframed else cycle.chunked_encoding
            else:
                # The cycle would close the connection at once.
                cycle.keep_alive = cycle.keep_alive or self._early
                if unframed:
                    cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive, announce)
        finally:
            DirectWriter.withdraw(scope)

    def on_response_complete(self) -> None:
        if self._early:
            self._linger()  # Discard the rest of the body.
        else:
            super().on_response_complete()

    def _check_pace(self) -> None:
        """Check the rate of a body, every `body_seconds`. A paused body is not late."""
        waiting = self.flow.read_paused or self.cycle.waiting_for_100_continue
        if self._body_bytes >= self.body_bytes or waiting:
            self._body_bytes = 0
            self._arm(self.body_seconds, self._check_pace)
        else:
            message = "The body of the request did not arrive in time."
            self._refuse(InvalidRequest(message, code="request_timeout", status=408))

    # End of a connection

    def _refuse(self, error: BatonError) -> None:
        """Respond with an error and end the connection, unless a response is in progress."""
        log.info("refused a connection: %s", error.message)
        running = self._running
        if running is None or running.response_complete:
            return self._answer(error)
        if not running.more_body:
            self._finish_running(running)
        elif running.response_started:
            self._end()
        else:
            running.disconnected = True
            running.message_event.set()
            self._answer(error)

    def _finish_running(self, running: RequestResponseCycle) -> None:
        """Invalid bytes followed a valid request: complete its response, then close."""
        self._ended = True
        self._disarm()
        self.pipeline.clear()
        running.keep_alive = False

    def _answer(self, error: BatonError) -> None:
        self.transport.write(_response(error, self.server_state.default_headers))
        self._linger()

    def _linger(self) -> None:
        self._ended = True
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._arm(self.linger_seconds, self._end)

    def _end(self) -> None:
        """Close the connection, after any earlier response is complete."""
        running = self._running
        if running is not None and not (running.response_complete or running.more_body):
            return self._finish_running(running)
        self._ended = True
        self.transport.close()

    def _arm(self, seconds: float, then: Callable[[], None]) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, then)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _has_length(message: Any) -> bool:
    return any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))


def _head_too_large() -> InvalidRequest:
    return InvalidRequest("The headers are too large.", code="headers_too_large", status=431)


def _unknown_method() -> InvalidRequest:
    return InvalidRequest("This method is not supported.", code="method_not_supported", status=405)


def _explain(error: httptools.HttpParserError) -> InvalidRequest:
    """Convert a parser error: ours are raised unchanged, others become a malformed request."""
    if isinstance(error.__context__, InvalidRequest):
        return error.__context__
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return _unknown_method()
    return InvalidRequest("The request is not valid HTTP/1.1.")


def _response(error: BatonError, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return a complete HTTP response for a request that did not reach the application."""
    response = respond(error)
    headers = [
        *default_headers,
        *((name, value) for name, value in response.raw_headers if name != b"connection"),
        (b"connection", b"close"),
        (b"x-request-id", f"req_{uuid4().hex}".encode()),
    ]
    if error.status == 405:
        headers.append((b"allow", b", ".join(METHODS)))
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", bytes(response.body)])
