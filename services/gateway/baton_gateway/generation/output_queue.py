"""Bounded queue of output deltas between the engine and the response."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from baton.errors import BatonError, ServerFault
from baton.logs import logger
from baton_gateway.generation.output import OutputDelta
from baton_gateway.http.errors import FAULT
from baton_gateway.http.write_batch import WriteBatch

MAX_QUEUED_DELTAS = 256
"""Queue limit per slow reader; beyond it, deltas of the same choice are merged."""

log = logger(__name__)


def _never(delta: OutputDelta) -> bool:
    return False


class OutputQueue:
    """Asynchronous iterator of deltas. It ends when every choice has ended, or raises an error.

    `put` never waits and never loses text: one task serves all requests, so a slow client must not
    block it.

    If the reader is idle, `put` calls `write` instead of waking it. `write` handles the delta as
    the reader would, or returns False without side effects. The end of the last choice always wakes
    the reader.
    """

    def __init__(self, choices: int, write: Callable[[OutputDelta], bool] = _never) -> None:
        self._deltas: deque[OutputDelta] = deque()
        self._open, self._write = choices, write
        self._error: BatonError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: OutputDelta) -> None:
        """Add a delta. A delta with a finish reason is the last one of its choice."""
        if delta.reason is not None:
            self._open -= 1
        waiter = self._waiter
        if waiter is not None and not waiter.done() and self._written(delta):
            if self._open <= 0:
                self._wake()
            return
        if len(self._deltas) < MAX_QUEUED_DELTAS or not self._join(delta):
            self._deltas.append(delta)
        self._wake()

    def _written(self, delta: OutputDelta) -> bool:
        """Try `write`. An exception ends this stream only."""
        try:
            return self._write(delta)
        except Exception:
            log.exception("a stream broke off")
            self.fail(ServerFault(FAULT))
            return True

    def fail(self, error: BatonError) -> None:
        """End with an error after the queued deltas. Only the first error counts."""
        if self._error is None:
            self._error = error
            self._wake()

    def __len__(self) -> int:
        return len(self._deltas)

    def __aiter__(self) -> OutputQueue:
        return self

    async def __anext__(self) -> OutputDelta:
        while not self._deltas:
            if self._open <= 0:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._deltas.popleft()

    def _join(self, delta: OutputDelta) -> bool:
        for i in range(len(self._deltas) - 1, -1, -1):
            if self._deltas[i].choice == delta.choice:
                self._deltas[i] = self._deltas[i].then(delta)
                return True
        return False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class DirectSink:
    """Writes deltas straight to the socket, skipping the consumer task.

    The producer and the response share one sink. It is used only while the reader is idle, so the
    order of deltas is kept.
    """

    __slots__ = ("write", "write_batch")

    def __init__(self) -> None:
        self.write: Callable[[OutputDelta], bool] = _closed
        """Writes a delta at once, or returns False without side effects."""
        self.write_batch = WriteBatch()
        """Coalesces the chunks with those of other requests; set by the engine."""

    def close(self) -> None:
        """Stop direct writes; deltas go to the reader from now on."""
        self.write = _closed


def _closed(delta: OutputDelta) -> bool:
    return False
