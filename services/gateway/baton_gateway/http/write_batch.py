"""Coalesces socket writes of many streams into one pass, after all chunks are made.

Every write is a system call that evicts CPU caches and branch predictions. Writing after all chunks
are made, instead of alternating, pays this cost once per batch, and clients that read several
streams wake less often.
"""

from __future__ import annotations

from typing import Protocol, Self

from baton.logs import logger

log = logger(__name__)


class Body(Protocol):
    """Target of chunks, such as `baton_gateway.http.direct_writer.DirectWriter`."""

    def write(self, data: bytes) -> None:
        """Write one chunk."""

    def cut(self) -> None:
        """Close the connection at once."""


class WriteBatch:
    """Collects chunks inside a `with` block and writes them on exit; outside, writes at once.

    The block must not await.
    """

    __slots__ = ("_chunks", "_gathers")

    def __init__(self) -> None:
        self._chunks: list[tuple[Body, bytes]] = []
        self._gathers = False

    def add(self, body: Body, data: bytes) -> None:
        """Write a chunk, at once or on exit."""
        if self._gathers:
            self._chunks.append((body, data))
        else:
            body.write(data)

    def __enter__(self) -> Self:
        self._gathers = True
        return self

    def __exit__(self, *_: object) -> None:
        chunks, self._chunks, self._gathers = self._chunks, [], False
        for body, data in chunks:
            try:
                body.write(data)
            except Exception:
                # Skipping a chunk would leave a gap, so close this stream; the others continue.
                log.exception("a stream broke off")
                body.cut()
