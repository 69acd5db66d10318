"""A WebSocket connection based on uvicorn's: it closes properly when the gateway drains, and
without delay after its session."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

GOING_AWAY = 1012
"""Close code of a service that restarts (IANA's registry of RFC 6455)."""
_NO_TEXT = 1007
"""Close code for text that is not UTF-8 (RFC 6455, section 7.4.1)."""
_TOO_BIG = 1009
"""Close code for a message that is too large (RFC 6455, section 7.4.1)."""
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest message: longer ones close the connection with code 1009."""
MAX_FRAGMENTS = 4096
"""Most frames of one message. Empty ones count for nothing in its size, but each costs memory."""
MAX_UNREAD_BYTES = 1024 * 1024
"""Most bytes of pongs that wait for a client that does not read."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection after its handshake."""

    linger_seconds = 2.0
    """Time limit of the closing handshake, and of unsent data."""

    def shutdown(self) -> None:
        """Tell the application that the gateway drains: it ends the session. uvicorn's
        implementation would close the connection in the middle of a transcript."""
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY})
        else:
            super().shutdown()

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message. A response that refuses the handshake completes it; uvicorn's
        implementation reports it as an error of the application.

        Raises `ClientDisconnected`, also after an invalid frame has closed the connection.
        """
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)
        last = message["type"] == "websocket.http.response.body" and not message.get("more_body")
        self.handshake_complete = self.handshake_complete or last

    def handle_cont(self, event: Frame) -> None:
        """Add a frame to a message; one of too many frames closes the connection."""
        if len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        elif not self.close_sent:
            self.conn.send_close(_TOO_BIG, f"a message has at most {MAX_FRAGMENTS} frames")
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        """Answer a ping. A client that does not read the answers is cut off: uvicorn's
        implementation would keep them all."""
        if self.transport.is_closing():
            return
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        """Pass a message to the application. Text that is not UTF-8 closes the connection, for
        which uvicorn's implementation logs a traceback."""
        text = self.curr_msg_data_type == "text" and not self.close_sent
        if text and not _is_utf8(b"".join(self.frames)):
            self.conn.send_close(_NO_TEXT)
            self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Abort the connection some time after the session, even if the client neither reads nor
        answers."""
        super().on_task_complete(task)
        if not self.disconnected:
            self._lingering = self.loop.call_later(self.linger_seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the abort."""
        super().connection_lost(exc)
        if (lingering := getattr(self, "_lingering", None)) is not None:
            lingering.cancel()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


OPTIONS: dict[str, Any] = {
    "ws": WebSocketProtocol,
    "ws_max_size": MAX_MESSAGE_BYTES,
    "ws_ping_interval": 20.0,
    # A session that waits for room for audio does not read, not even pongs.
    "ws_ping_timeout": None,
    # Audio is not compressible, and a compressed message may expand to any size.
    "ws_per_message_deflate": False,
}
"""Arguments of uvicorn's `Config`."""
