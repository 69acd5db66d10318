"""A streamed body past ASGI: what need not wait is written without a task that waits for it."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_KEY = "baton.direct"


class DirectWriter:
    """The body of one response. To be used only while nobody is inside of its `send`."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @classmethod
    def of(cls, scope: Any) -> DirectWriter | None:
        """That of a request's scope; None where the server offers none."""
        direct: DirectWriter | None = scope.get("extensions", {}).get(_KEY)
        return direct

    def offer(self, scope: Any) -> None:
        """Make it known to the application."""
        scope.setdefault("extensions", {})[_KEY] = self

    @property
    def open(self) -> bool:
        """A chunk can be written now: the body has begun, and the client takes what it is sent."""
        cycle = self._cycle
        return bool(cycle.chunked_encoding) and not (
            cycle.flow.write_paused or cycle.disconnected or cycle.response_complete
        )

    def write(self, data: bytes) -> None:
        """Write one chunk, as `send` would. Only while it is `open`."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def cut(self) -> None:
        """Close the connection at once, without an end of the body."""
        self._cycle.transport.abort()
