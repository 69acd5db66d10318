"""Chunks for many streams that leave one after the other, once all of them are made.

To write one is a system call, after which the processor's caches and its guesses of branches are
the kernel's. Where making and writing take turns, each pays for that with every chunk. Clients that
read together are also woken less often.
"""

from __future__ import annotations

from typing import Protocol, Self

from baton.logs import logger

log = logger(__name__)


class Body(Protocol):
    """Where chunks go; `baton_gateway.http.direct_writer.DirectWriter` is one."""

    def write(self, data: bytes) -> None:
        """Write one chunk."""

    def cut(self) -> None:
        """Close the connection at once, for good."""


class WriteBatch:
    """Gathers chunks inside of `with`, and writes them at its end; outside, each at once.

    Nothing else runs between: what is inside of `with` must not wait.
    """

    __slots__ = ("_chunks", "_gathers")

    def __init__(self) -> None:
        self._chunks: list[tuple[Body, bytes]] = []
        self._gathers = False

    def add(self, body: Body, data: bytes) -> None:
        """Write a chunk, now or with the others."""
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
                # The rest of this stream would have a gap; the others have nothing to do with it.
                log.exception("a stream broke off")
                body.cut()
