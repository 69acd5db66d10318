"""A WebSocket connection based on uvicorn's: it ends in an orderly way when the gateway drains, and
at once when its session is over."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

GOING_AWAY = 1012
"""Close code of a service that restarts (IANA's registry of RFC 6455)."""
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest message: longer ones close the connection with code 1009."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection after its handshake."""

    linger_seconds = 2.0
    """How long the closing handshake may take, and what is unsent may wait for the client."""

    def shutdown(self) -> None:
        """Tell the application that the gateway drains: it ends the session. uvicorn's own would
        cut it off in the middle of a transcript."""
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY})
        else:
            super().shutdown()

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message. An answer that refuses the handshake completes it, which uvicorn's own
        reports as an error of the application."""
        await super().send(message)
        last = message["type"] == "websocket.http.response.body" and not message.get("more_body")
        self.handshake_complete = self.handshake_complete or last

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Close the connection for good some time after the session, also if the client neither
        reads nor answers."""
        super().on_task_complete(task)
        if not self.disconnected:
            self._lingering = self.loop.call_later(self.linger_seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait for that."""
        super().connection_lost(exc)
        if (lingering := getattr(self, "_lingering", None)) is not None:
            lingering.cancel()


OPTIONS: dict[str, Any] = {
    "ws": WebSocketProtocol,
    "ws_max_size": MAX_MESSAGE_BYTES,
    "ws_ping_interval": 20.0,
    # A session that waits for room for audio reads nothing, pongs included.
    "ws_ping_timeout": None,
    # Audio is not compressible, and a compressed message may be a bomb.
    "ws_per_message_deflate": False,
}
"""Arguments of uvicorn's `Config`."""
