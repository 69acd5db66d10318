"""Client of the scheduler: submits sequences and receives their tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import count

from baton.errors import (
    BatonError,
    InvalidRequest,
    NotFound,
    RateLimited,
    ServerFault,
    Unavailable,
)
from baton.logs import logger
from baton.net.topology import FRONTEND
from baton.protocol import (
    Abort,
    Action,
    AdminCommand,
    AdminReply,
    CacheReset,
    Envelope,
    Failed,
    Hello,
    Message,
    ResetCache,
    Stats,
    Tokens,
)
from baton.protocol.token_columns import pack, unpack
from baton.protocol.vector_columns import split
from baton_gateway.clients.connection import Connect, Connection, Pool
from baton_gateway.clients.fleet_view import FleetView
from baton_gateway.generation.logprobs import by_row, of_prompt
from baton_gateway.generation.sequence import Sequence
from baton_gateway.http.errors import GatewayPartitioned
from baton_gateway.observability.timeline_store import TimelineStore

Feed = Callable[[Iterable[Sequence]], Awaitable[None]]

_LEAVING, _FULL = "shutting_down", "server_is_overloaded"
"""Error codes of a scheduler that is shutting down, and of one whose queue is full."""
_KINDS: dict[int, type[BatonError]] = {429: RateLimited, 503: Unavailable}

log = logger(__name__)


class SchedulerClient:
    """Submits and aborts sequences, appends tokens to their logs.

    `feed` is called once per message with the sequences that it advanced. `live` holds every
    sequence by handle from `submit` until `forget`; messages for other handles are ignored.

    Losing a scheduler loses no tokens, since the logs are kept here. Its sequences wait at most
    `timeout` seconds and are then resubmitted to the next scheduler, to continue after their logs.
    """

    def __init__(
        self,
        hello: Hello,
        connect: Connect,
        fleet: FleetView,
        ledger: TimelineStore,
        feed: Feed,
        timeout: float,
    ) -> None:
        self.live: dict[int, Sequence] = {}
        self.fleet = fleet
        self._ledger = ledger
        self.pool = Pool(FRONTEND, hello, connect, self)
        self._feed, self._timeout = feed, timeout
        self._waiting: dict[int, asyncio.TimerHandle] = {}
        """Time-out handles of sequences that wait for a scheduler, by sequence handle."""
        self._unsent_aborts: list[int] = []
        """Handles to abort if the same scheduler reconnects."""
        self._resets: dict[int, asyncio.Future[int]] = {}
        self._commands: dict[int, asyncio.Future[AdminReply]] = {}
        self._numbers = count(1)

    async def submit(self, sequences: Iterable[Sequence]) -> None:
        """Submit sequences; those with a log continue after it.

        Sequences that cannot be submitted now wait for a scheduler with capacity.
        """
        for sequence in sequences:
            self.live[sequence.handle] = sequence
            if not await self._hand_over(sequence):
                self._hold(sequence)

    async def _hand_over(self, sequence: Sequence) -> bool:
        connection = self.pool.pick()
        envelope = Envelope(
            trace=sequence.trace, deadline_ms=sequence.remaining_ms(time.monotonic())
        )
        return connection is not None and await connection.post(sequence.submission(), envelope)

    def _hold(self, sequence: Sequence) -> None:
        """Queue a sequence until a scheduler is available, with a time limit."""
        if sequence.handle not in self._waiting:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._timeout, sequence.stream.fail, _lost())
            self._waiting[sequence.handle] = timer
            sequence.timeline.scheduler_lost()

    async def _resume(self) -> None:
        """Submit the waiting sequences in their order of arrival."""
        for handle in list(self._waiting):
            sequence = self.live.get(handle)
            if sequence is None or sequence.ended:
                self._let_go(handle)
            elif await self._hand_over(sequence):
                sequence.renewed = True
                sequence.timeline.resumed()
                self._let_go(handle)

    def _let_go(self, handle: int) -> None:
        timer = self._waiting.pop(handle, None)
        if timer is not None:
            timer.cancel()

    async def abort(self, sequences: Iterable[Sequence]) -> None:
        """Abort the sequences that still run; the scheduler frees their pages at once."""
        handles = [s.handle for s in sequences if s.reason is None]
        if handles and not await self._abort(handles):
            self._unsent_aborts += handles

    async def _abort(self, handles: list[int]) -> bool:
        connection = self.pool.pick()
        return connection is not None and await connection.post(Abort(pack(handles, "I")))

    async def reset_cache(self, seconds: float) -> int:
        """Empty the prefix cache. Returns the number of pages that it held.

        Raises `Unavailable` when the scheduler does not reply within `seconds`.
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

    async def administer(self, model: str, action: Action, seconds: float) -> AdminReply:
        """Send a command to every worker of a model. Returns the scheduler's reply.

        Raises `InvalidRequest` or `NotFound` if it is refused, `Unavailable` without a reply within
        `seconds`.
        """
        connection, number = self.pool.pick(), next(self._numbers)
        future: asyncio.Future[AdminReply] = asyncio.get_running_loop().create_future()
        self._commands[number] = future
        try:
            if connection is None or not await connection.post(AdminCommand(number, model, action)):
                raise _silent()
            async with asyncio.timeout(seconds):
                return _accepted(await future)
        except TimeoutError as error:
            raise _silent() from error
        finally:
            del self._commands[number]

    def leave(self) -> None:
        """Fail sequences without tokens, so that their clients can retry on another gateway."""
        for sequence in list(self.live.values()):
            if not sequence.log and not sequence.ended:
                sequence.stream.fail(GatewayPartitioned())

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Drop sequences that have been released."""
        for sequence in sequences:
            self.live.pop(sequence.handle, None)
            self._let_go(sequence.handle)

    async def joined(self, connection: Connection) -> None:
        log.info("the scheduler at %s answers", connection.address)
        handles, self._unsent_aborts = self._unsent_aborts, []
        if handles:
            await self._abort(handles)
        if self._waiting:
            log.info("%d sequences go on there after their logs", len(self._waiting))
        await self._resume()

    async def lost(self, connection: Connection) -> None:
        """Keep its sequences waiting for the next scheduler."""
        self.fleet.forget()
        for sequence in self.live.values():
            if sequence.reason is None and not sequence.ended:
                self._hold(sequence)

    async def received(self, connection: Connection, message: Message) -> None:
        if isinstance(message, Tokens):
            await self._on_tokens(message)
        elif isinstance(message, Failed):
            self._on_failed(message)
        elif isinstance(message, Stats):
            self.fleet.report(message, time.monotonic())
            await self._resume()
        elif isinstance(message, CacheReset):
            future = self._resets.get(message.id)
            if future is not None and not future.done():
                future.set_result(message.pages)
        elif isinstance(message, AdminReply):
            command = self._commands.get(message.id)
            if command is not None and not command.done():
                command.set_result(message)

    async def _on_tokens(self, message: Tokens) -> None:
        self._ledger.record(message.phase_times.items())
        for handle, cached in message.cached.items():
            # A resumed sequence is estimated again; report only the first estimate.
            if (sequence := self.live.get(handle)) is not None and not sequence.log:
                sequence.cached = cached
        for handle, note in message.estimates.items():
            if (sequence := self.live.get(handle)) is not None and sequence.choice == 0:
                sequence.notes.update(note)
        fed, stale, torn = self._extend(message)
        for part in message.prompt_logprobs:
            if (sequence := self.live.get(part.slot)) is not None:
                sequence.prompt_logprobs |= of_prompt(part, sequence.prompt)
        for handle, vector in split(message.pooled).items():
            if (sequence := self.live.get(handle)) is not None and not sequence.ended:
                sequence.answer(vector)
        for handle, reason in message.finished.items():
            if handle not in stale and (sequence := self.live.get(handle)) is not None:
                sequence.reason = reason
                sequence.timeline.sampled(handle)
                fed[handle] = sequence
        await self._feed(fed.values())
        await self._again(torn)

    async def _again(self, sequences: list[Sequence]) -> None:
        """Resubmit sequences with missing tokens, to continue after their logs. Indicates a bug."""
        if sequences:
            await self.abort(sequences)
            for sequence in sequences:
                log.error("request %s: tokens after %d are missing, they are made again",
                          sequence.request, len(sequence.log))  # fmt: skip
                self._hold(sequence)
            await self._resume()

    def _extend(self, message: Tokens) -> tuple[dict[int, Sequence], set[int], list[Sequence]]:
        """Append every row to its log. Returns the sequences concerned, the handles of rows from
        previous runs, and the sequences with a gap before their row."""
        tokens = unpack(message.tokens)
        logprobs = by_row(message.logprobs, tokens)
        fed: dict[int, Sequence] = {}
        torn: list[Sequence] = []
        stale, at = set(), 0
        rows = zip(
            unpack(message.handles, "I"),
            unpack(message.first, "I"),
            unpack(message.counts, "B"),
            strict=True,
        )
        for handle, first, number in rows:
            sequence = self.live.get(handle)
            if sequence is not None and sequence.is_from_previous_run(first):
                stale.add(handle)
            elif sequence is not None and first > len(sequence.log):
                stale.add(handle)
                torn.append(sequence)
            elif sequence is not None:
                span = range(at, at + number) if logprobs else ()
                entries = [logprobs[i] for i in span if i in logprobs]
                sequence.extend(first, tokens[at : at + number], entries)
                fed[handle] = sequence
            at += number
        return fed, stale, torn

    def _on_failed(self, message: Failed) -> None:
        sequence = self.live.get(message.handle)
        if sequence is None:
            return
        if message.code == _LEAVING or (message.code == _FULL and sequence.log):
            self._hold(sequence)  # A scheduler accepts it later.
            return
        if message.phase_times is not None:
            self._ledger.record(((message.handle, message.phase_times),))
        kind = _KINDS.get(message.status, ServerFault)
        error = kind(
            message.message,
            code=message.code,
            status=message.status,
            retry_after=message.retry_after or None,
        )
        sequence.reason = "error"
        sequence.stream.fail(error)


def _accepted(reply: AdminReply) -> AdminReply:
    """Return a reply, or raise its error."""
    if reply.status == 503:
        raise Unavailable(reply.reason, retry_after=2)
    if reply.status == 404:
        raise NotFound(reply.reason)
    if reply.status != 200:
        raise InvalidRequest(reply.reason, status=reply.status)
    return reply


def _silent() -> Unavailable:
    return Unavailable("The scheduler does not answer. Try again later.", retry_after=2)


def _lost() -> Unavailable:
    return Unavailable(
        "The scheduler was lost while this request ran, and none has taken its place. Send it "
        "again.",
        code="scheduler_lost",
        retry_after=1,
    )
