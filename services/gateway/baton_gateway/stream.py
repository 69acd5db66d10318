"""Deltas of one request on their way from the engine to whoever writes them out. Bounded."""

from __future__ import annotations

import asyncio
from collections import deque

from baton.errors import BatonError
from baton_gateway.generation import Delta

LIMIT = 256
"""Deltas that wait for a slow reader. Beyond it, deltas of one choice are joined."""


class Stream:
    """An asynchronous iterator of deltas that ends when every choice has ended, or in an error.

    `put` never waits and never loses text: the engine serves all requests from one task, which
    a client that does not read must not hold up.
    """

    def __init__(self, choices: int) -> None:
        self._deltas: deque[Delta] = deque()
        self._open = choices
        self._error: BatonError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: Delta) -> None:
        """Add a delta; one with a reason is the last of its choice."""
        if delta.reason is not None:
            self._open -= 1
        if len(self._deltas) < LIMIT or not self._join(delta):
            self._deltas.append(delta)
        self._wake()

    def fail(self, error: BatonError) -> None:
        """End with an error, after what has been put so far. Only the first one counts."""
        if self._error is None:
            self._error = error
            self._wake()

    def __len__(self) -> int:
        return len(self._deltas)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        while not self._deltas:
            if self._open <= 0:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._deltas.popleft()

    def _join(self, delta: Delta) -> bool:
        for i in range(len(self._deltas) - 1, -1, -1):
            if self._deltas[i].choice == delta.choice:
                self._deltas[i] = self._deltas[i].then(delta)
                return True
        return False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
