"""Deltas of one request on their way from the engine to whoever writes them out. Bounded."""

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
"""Deltas that wait for a slow reader. Beyond it, deltas of one choice are joined."""

log = logger(__name__)


def _never(delta: OutputDelta) -> bool:
    return False


class OutputQueue:
    """An asynchronous iterator of deltas that ends when every choice has ended, or in an error.

    `put` never waits and never loses text: the engine serves all requests from one task, which
    a client that does not read must not hold up.

    A reader that waits has dealt with all that came before. So what is put then may pass it:
    `write` does at once what the reader would do when it wakes, or returns False and has done
    nothing. It is woken for the end.
    """

    def __init__(self, choices: int, write: Callable[[OutputDelta], bool] = _never) -> None:
        self._deltas: deque[OutputDelta] = deque()
        self._open, self._write = choices, write
        self._error: BatonError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: OutputDelta) -> None:
        """Add a delta; one with a reason is the last of its choice."""
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
        """Whether a delta is dealt with. What breaks here ends this stream, and no other one."""
        try:
            return self._write(delta)
        except Exception:
            log.exception("a stream broke off")
            self.fail(ServerFault(FAULT))
            return True

    def fail(self, error: BatonError) -> None:
        """End with an error, after what has been put so far. Only the first one counts."""
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
    """Shared by whoever runs a request and whoever answers it. It is used only while the reader of
    the deltas waits, so that nothing overtakes anything."""

    __slots__ = ("write", "write_batch")

    def __init__(self) -> None:
        self.write: Callable[[OutputDelta], bool] = _closed
        """Writes a delta at once, or returns False and has done nothing."""
        self.write_batch = WriteBatch()
        """With which others its chunks leave; that of whoever runs many requests."""

    def close(self) -> None:
        """From now on, deltas go to their reader."""
        self.write = _closed


def _closed(delta: OutputDelta) -> bool:
    return False
