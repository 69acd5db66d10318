"""Writes chunks of a streamed body straight to the transport, without ASGI and a waiting task."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_KEY = "baton.direct"


class DirectWriter:
    """The body of one response. Must not be used while a call of its `send` is pending."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @classmethod
    def of(cls, scope: Any) -> DirectWriter | None:
        """Return the writer of a request's scope; None if the server provides none."""
        direct: DirectWriter | None = scope.get("extensions", {}).get(_KEY)
        return direct

    def offer(self, scope: Any) -> None:
        """Add the writer to the request's scope."""
        scope.setdefault("extensions", {})[_KEY] = self

    @staticmethod
    def withdraw(scope: Any) -> None:
        """Remove the writer from the scope. The scope belongs to the writer's cycle, so the
        reference would keep the request's body alive until garbage collection."""
        scope.get("extensions", {}).pop(_KEY, None)

    @property
    def open(self) -> bool:
        """True if a chunk can be written: the body has begun and the transport is not paused."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (
            cycle.flow.write_paused or cycle.disconnected or cycle.response_complete
        )

    def write(self, data: bytes) -> None:
        """Write one chunk, as `send` would. Call only while `open`."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def cut(self) -> None:
        """Close the connection at once, leaving the body incomplete. What the client has not read
        is dropped: closing the transport would wait for it."""
        self._cycle.disconnected = True  # Nothing more is sent.
        self._cycle.transport.abort()
