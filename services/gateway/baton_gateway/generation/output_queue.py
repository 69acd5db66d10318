"""Bounded queue of output deltas between the engine and the response.

    queued:  Sequence.deliver -> put -> deque -> reader's task -> response
    direct:  Sequence.deliver -> put -> sink.write -> socket      (only while the reader is idle)

Waking the reader's task costs more than a chunk does, so most deltas of a stream go the direct way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from baton.errors import BatonError, ServerFault
from baton.logs import logger
from baton_gateway.generation.output import OutputDelta
from baton_gateway.http.errors import FAULT

MAX_QUEUED_DELTAS = 256
"""Queue limit per slow reader; beyond it, deltas of the same choice are merged."""

log = logger(__name__)


class OutputSink(Protocol):
    """Takes deltas in place of the reader's task."""

    def write(self, delta: OutputDelta) -> bool:
        """Handle a delta as the reader would, or return False without side effects."""


class OutputQueue:
    """Asynchronous iterator of deltas. It ends when every choice has ended, or raises an error.

    `put` never waits and never loses text: one task serves all requests, so a slow client must not
    block it.

    If the reader is idle, `put` offers the delta to `sink` instead of waking it. The end of the
    last choice always wakes the reader.
    """

    def __init__(
        self,
        choices: int,
        sink: OutputSink | None = None,
        on_delivered: Callable[[OutputDelta], None] = lambda delta: None,
    ) -> None:
        """`on_delivered` is called for each delta that leaves the queue, on either path."""
        self._deltas: deque[OutputDelta] = deque()
        self._open, self._sink, self._on_delivered = choices, sink, on_delivered
        self._error: BatonError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: OutputDelta) -> None:
        """Add a delta. A delta with a finish reason is the last one of its choice."""
        if delta.reason is not None:
            self._open -= 1
        if self._idle and self._sink is not None and self._write(self._sink, delta):
            if self._open <= 0:
                self._wake()
            return
        if len(self._deltas) < MAX_QUEUED_DELTAS or not self._join(delta):
            self._deltas.append(delta)
        self._wake()

    @property
    def _idle(self) -> bool:
        """True if the reader waits and has processed every earlier delta."""
        return self._waiter is not None and not self._waiter.done()

    def _write(self, sink: OutputSink, delta: OutputDelta) -> bool:
        """The direct path. An exception ends this stream only."""
        try:
            written = sink.write(delta)
        except Exception:
            log.exception("a stream broke off")
            self.fail(ServerFault(FAULT))
            return True
        if written:
            self._on_delivered(delta)
        return written

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
        delta = self._deltas.popleft()
        self._on_delivered(delta)
        return delta

    def _join(self, delta: OutputDelta) -> bool:
        for i in range(len(self._deltas) - 1, -1, -1):
            if self._deltas[i].choice == delta.choice:
                self._deltas[i] = self._deltas[i].then(delta)
                return True
        return False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
