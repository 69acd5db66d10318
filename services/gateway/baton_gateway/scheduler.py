"""The gateway's side of the scheduler: what runs there, and what is heard from there."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable
from itertools import count

from baton.errors import BatonError, RateLimited, ServerFault, Unavailable
from baton.logs import logger
from baton.protocol import (
    Abort,
    CacheReset,
    Envelope,
    Failed,
    Hello,
    Message,
    ResetCache,
    Stats,
    Tokens,
)
from baton.tokens import pack, unpack
from baton.topology import FRONTEND
from baton_gateway.connection import Connect, Connection, Pool
from baton_gateway.fleet import Fleet
from baton_gateway.generation import TokenLogprob
from baton_gateway.logprobs import by_row, of_prompt
from baton_gateway.sequence import Sequence

Feed = Callable[[Iterable[Sequence]], Awaitable[None]]

_KINDS: dict[int, type[BatonError]] = {429: RateLimited, 503: Unavailable}

log = logger(__name__)


class Scheduler:
    """Submits and aborts sequences, applies tokens to their logs.

    `feed` is called once per message with the sequences that it advanced. `live` holds every
    sequence by its handle from `submit` until `forget`; what is not in it is ignored.
    """

    def __init__(self, hello: Hello, connect: Connect, fleet: Fleet, feed: Feed) -> None:
        self.live: dict[int, Sequence] = {}
        self.fleet = fleet
        self.pool = Pool(FRONTEND, hello, connect, self)
        self._feed = feed
        self._resets: dict[int, asyncio.Future[int]] = {}
        self._numbers = count(1)

    async def submit(
        self, sequences: Iterable[Sequence], trace: str = "", deadline_ms: int = 0
    ) -> None:
        """Hand sequences over, fresh or, when they have a log, to be continued after it.

        They have `deadline_ms` milliseconds from now on, unless it is 0.

        Raises `Unavailable` when the scheduler is gone; some may have been handed over then.
        """
        connection = self.pool.pick()
        envelope = Envelope(trace=trace, deadline_ms=deadline_ms)
        for sequence in sequences:
            self.live[sequence.handle] = sequence
            if connection is None or not await connection.post(sequence.submission(), envelope):
                raise _gone()

    async def abort(self, sequences: Iterable[Sequence]) -> None:
        """Stop those that still run; the scheduler frees their pages at once."""
        handles = [s.handle for s in sequences if s.reason is None]
        connection = self.pool.pick()
        if handles and connection is not None:
            await connection.post(Abort(pack(handles, "I")))

    async def reset_cache(self, seconds: float) -> int:
        """Empty the prefix cache. Returns how many pages it held.

        Raises `Unavailable` when the scheduler does not answer within `seconds`.
        """
        connection, number = self.pool.pick(), next(self._numbers)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._resets[number] = future
        try:
            if connection is None or not await connection.post(ResetCache(number)):
                raise _silent()
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError as error:
            raise _silent() from error
        finally:
            del self._resets[number]

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Nobody reads these any more."""
        for sequence in sequences:
            self.live.pop(sequence.handle, None)

    async def joined(self, connection: Connection) -> None:
        log.info("the scheduler at %s answers", connection.address)

    async def lost(self, connection: Connection) -> None:
        """Every sequence is lost with its scheduler: `submit` could hand them to the next one."""
        self.fleet.forget()
        for sequence in self.live.values():
            sequence.stream.fail(_gone())

    async def received(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Tokens):
            await self._on_tokens(message)
        elif isinstance(message, Failed):
            self._on_failed(message)
        elif isinstance(message, Stats):
            self.fleet.report(message, time.monotonic())
        elif isinstance(message, CacheReset):
            future = self._resets.get(message.id)
            if future is not None and not future.done():
                future.set_result(message.pages)

    async def _on_tokens(self, message: Tokens) -> None:
        for handle, cached in message.cached.items():
            if (sequence := self.live.get(handle)) is not None:
                sequence.cached = cached
        fed = self._extend(message)
        for part in message.prompt_logprobs:
            if (sequence := self.live.get(part.slot)) is not None:
                sequence.prompt_logprobs |= of_prompt(part, sequence.prompt)
        for handle, reason in message.finished.items():
            if (sequence := self.live.get(handle)) is not None:
                sequence.reason = reason
                fed[handle] = sequence
        await self._feed(fed.values())

    def _extend(self, message: Tokens) -> dict[int, Sequence]:
        """Append every row to its log. Returns the sequences that it concerned."""
        tokens = unpack(message.tokens)
        logprobs = by_row(message.logprobs, tokens)
        fed, at = {}, 0
        rows = zip(
            unpack(message.handles, "I"),
            unpack(message.first, "I"),
            unpack(message.counts, "B"),
            strict=True,
        )
        for handle, first, number in rows:
            sequence = self.live.get(handle)
            if sequence is not None:
                entries = [logprobs[i] for i in range(at, at + number) if i in logprobs]
                _append(sequence, first, tokens[at : at + number], entries)
                fed[handle] = sequence
            at += number
        return fed

    def _on_failed(self, message: Failed) -> None:
        sequence = self.live.get(message.handle)
        if sequence is None:
            return
        kind = _KINDS.get(message.status, ServerFault)
        error = kind(
            message.message,
            code=message.code,
            status=message.status,
            retry_after=message.retry_after or None,
        )
        sequence.reason = "error"
        sequence.stream.fail(error)


def _append(
    sequence: Sequence, first: int, tokens: array[int], entries: list[TokenLogprob]
) -> None:
    try:
        sequence.extend(first, tokens, entries)
    except ServerFault as error:
        log.error("request %s has a gap before token %d", sequence.request, first)
        sequence.stream.fail(error)


def _silent() -> Unavailable:
    return Unavailable("The scheduler does not answer. Try again later.", retry_after=2)


def _gone() -> Unavailable:
    return Unavailable(
        "The scheduler was restarted while this request ran. Send it again.",
        code="scheduler_restarted",
        retry_after=1,
    )
