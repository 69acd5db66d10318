"""Durable streams: they survive a lost connection and, with a journal, a lost gateway.

    engine -- deltas --> DurableStream --> journal
                             |
                             +------> any number of readers, each from the first delta on

A delta is written to the journal before any reader receives it. So another gateway can continue the
same token logs without gaps or duplicates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from weakref import WeakValueDictionary

from baton.errors import BatonError, InvalidRequest, ServerFault, Unavailable
from baton.logs import logger
from baton_gateway.durable.journal import (
    Journal,
    StoredStream,
    StreamExists,
    StreamFenced,
    StreamRecord,
    decode,
    encode,
)
from baton_gateway.durable.shared_transcript import (
    BURST,
    SharedTranscript,
    Transcript,
    Turns,
)
from baton_gateway.generation.output import Event, OutputDelta, Started
from baton_gateway.generation.request import PriorOutput
from baton_gateway.http.disconnect import cancel_tasks
from baton_gateway.http.errors import FAULT, GatewayPartitioned

_PRUNE_SECONDS = 30.0
_MOST_FINISHED = 16
"""Ended streams that are kept in memory for their next reader."""
_GUARD_SECONDS = 0.1
"""Interval in seconds of checks for a network partition."""

Continue = Callable[[StreamRecord, tuple[PriorOutput, ...]], AsyncGenerator[Event, None]]
"""Resumes the generation of a stream after the prior output of its choices."""

log = logger(__name__)


class DurableStream:
    """One durable stream: one writer task, and any number of readers from the first delta on.

    After `grace` seconds without a reader the generation is aborted; a later reader resumes it from
    the journal.
    """

    def __init__(
        self, ticket: StreamRecord, journal: Journal, epoch: int, grace: float, turns: Turns
    ) -> None:
        self.record = ticket
        self._turns = turns
        self._shared: SharedTranscript | None = None
        self._journal, self._epoch, self._grace = journal, epoch, grace
        self._deltas: list[OutputDelta] = []
        self._error: BatonError | None = None
        self._readers = 0
        self._changed = asyncio.Event()
        self._alone: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._complete = self._left = False
        self.resumed = False
        """True if another run, here or elsewhere, began the stream."""
        self._kept = True
        """True while the journal has every delta."""

    def start(
        self, events: AsyncGenerator[Event, None], past: tuple[OutputDelta, ...] = ()
    ) -> None:
        """Begin to record the deltas that follow `past`."""
        self._deltas = list(past)
        self._task = asyncio.create_task(self._record(events))
        self._watch()

    def ended(self, deltas: tuple[OutputDelta, ...]) -> None:
        """Mark the stream as finished with these deltas."""
        self._deltas, self._complete = list(deltas), True

    @property
    def running(self) -> bool:
        """True while this gateway writes the stream."""
        return self._task is not None and not self._task.done()

    async def deltas(self, place: ReplayCursor) -> AsyncGenerator[OutputDelta, None]:
        """Yield every delta from the first on. Raises the error that ended the generation."""
        self._enter()
        at = 0
        try:
            while True:
                while at < len(self._deltas):
                    yield self._deltas[at]
                    at += 1
                if self._complete:
                    return
                await self._more(place)
        finally:
            self._exit()

    async def payloads(
        self, transcript: Transcript, started: Started, place: ReplayCursor
    ) -> AsyncGenerator[bytes, None]:
        """Yield every payload from the first on. Raises the error that ended the generation.

        The transcript of the first reader serves all of them.
        """
        if self._shared is None:
            self._shared = SharedTranscript(transcript, started)
        shared, at = self._shared, 0
        self._enter()
        try:
            while True:
                while at < len(shared.payloads):
                    if at % BURST == BURST - 1:
                        await self._turns.take()
                    yield shared.payloads[at]
                    at += 1
                if not shared.grow(self._deltas, complete=self._complete):
                    if shared.closed:
                        return
                    await self._more(place)
        finally:
            self._exit()

    async def _more(self, place: ReplayCursor) -> None:
        """Wait for a delta or the end. Raises the error that ended the generation."""
        if place.replaying:
            raise _beyond()
        if self._error is not None:
            raise self._error
        await self._changed.wait()
        if self._readers > BURST:
            await self._turns.take()

    def _enter(self) -> None:
        self._readers += 1
        if self._alone is not None:
            self._alone.cancel()

    def _exit(self) -> None:
        self._readers -= 1
        self._watch()

    async def stop(self) -> None:
        """Stop the generation; the journal is unchanged."""
        if self._alone is not None:
            self._alone.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def leave(self) -> None:
        """Release the stream to another gateway: stop the generation and disconnect the readers."""
        if self.running and self._task is not None:
            self._left = True
            self._task.cancel()

    def _watch(self) -> None:
        if not self._readers and self.running:
            self._alone = asyncio.get_running_loop().call_later(self._grace, self._pause)

    def _pause(self) -> None:
        log.info("the stream %s has no reader: it pauses", self.record.id)
        if self._task is not None:
            self._task.cancel()

    async def _record(self, events: AsyncGenerator[Event, None]) -> None:
        try:
            async for event in events:
                if isinstance(event, OutputDelta):
                    await self._keep(encode(event))
                    self._deltas.append(event)
                    self._tell()
            await self._keep(b"", done=True)
            self._complete = True
        except Unavailable as error:
            # What was resumed can be resumed again: nothing but a server is missing.
            log.warning("the stream %s has to wait: %s", self.record.id, error.message)
            self._error = _paused() if self.resumed else error
        except BatonError as error:
            self._error = error
        except asyncio.CancelledError:
            self._error = GatewayPartitioned() if self._left else _paused()
            raise
        except Exception:
            log.exception("the stream %s broke off", self.record.id)
            self._error = ServerFault(FAULT)
        finally:
            await events.aclose()
            self._tell()

    async def _keep(self, part: bytes, *, done: bool = False) -> None:
        """Append a part. If the journal fails, the stream continues in memory only."""
        if not self._kept:
            return
        try:
            await self._journal.append(self.record.id, self._epoch, part, done=done)
        except Unavailable:
            log.error("the stream %s is not durable from here on", self.record.id)
            self._kept = False

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class ReplayCursor:
    """Replay position of a reader."""

    def __init__(self) -> None:
        self.replaying = False
        """True while the reader skips deltas that its client has; these must all be recorded."""


class DurableStreams:
    """Durable streams of one gateway. Life cycle: `start` once, `close` at the end."""

    def __init__(
        self, journal: Journal, grace: float, cut_off: Callable[[], bool] = lambda: False
    ) -> None:
        """`cut_off`: returns whether other gateways should take over the streams of this one."""
        self._journal, self._grace, self._cut_off = journal, grace, cut_off
        self._here: dict[str, DurableStream] = {}
        self._finished: dict[str, DurableStream] = {}
        """Some streams from the journal that have ended, until the next prune."""
        self._turns = Turns()
        self._taking = WeakValueDictionary[str, asyncio.Lock]()
        """Locks by id for streams that are being looked up."""
        self._beginning = WeakValueDictionary[str, asyncio.Lock]()
        """Locks by id for what is begun once only."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> str:
        """What an operator should know about the journal; empty while all is well."""
        return self._journal.problem

    async def start(self) -> None:
        """Start pruning old streams and watching for partitions."""
        self._tasks = [asyncio.create_task(self._prune()), asyncio.create_task(self._guard())]

    async def close(self) -> None:
        """Stop all generations and close the journal."""
        await cancel_tasks(*self._tasks)
        await asyncio.gather(*(recording.stop() for recording in self._here.values()))
        await self._journal.close()

    async def record(
        self, ticket: StreamRecord, events: AsyncGenerator[OutputDelta, None]
    ) -> DurableStream:
        """Make a new stream durable. Raises `Unavailable` when the journal is unavailable."""
        try:
            epoch = await self._journal.create(ticket)
        except BaseException:
            await events.aclose()
            raise
        return self._run(ticket, epoch, events)

    async def find(self, name: str, owner: str, resume: Continue) -> DurableStream | None:
        """Return a stream of this owner, running here or resumed from the journal.

        Raises `GatewayPartitioned` when this gateway is cut off; another gateway may be running the
        stream.
        """
        if self._cut_off():
            raise GatewayPartitioned
        async with self._taking.setdefault(name, asyncio.Lock()):
            here = self._here.get(name)
            if here is None or not here.running:
                here = self._finished.get(name)
            if here is not None:
                return here if here.record.owner == owner else None
            kept = await self._journal.claim(name, owner)
            return None if kept is None else self._go_on(kept, resume)

    async def once(
        self,
        name: str,
        owner: str,
        resume: Continue,
        begin: Callable[[], Awaitable[DurableStream]],
    ) -> tuple[DurableStream, bool]:
        """Return the stream of this name, and whether it was there before; else `begin` it.

        A caller that comes while it is begun waits for it. Raises what `find` and `begin` do.
        """
        async with self._beginning.setdefault(name, asyncio.Lock()):
            found = await self.find(name, owner, resume)
            if found is not None:
                return found, True
            try:
                return await begin(), False
            except StreamExists:  # another gateway was faster
                found = await self.find(name, owner, resume)
                if found is None:
                    raise
                return found, True

    async def result_once(
        self, ticket: StreamRecord, work: Callable[[], Awaitable[bytes]]
    ) -> tuple[StreamRecord, bytes, bool]:
        """Return what `work` came to under the id of this record, at first or now: the record of
        that time, the result, and whether it was there before.

        The journal keeps it as a stream of one part. Raises `Unavailable`, and what `work` does.
        """
        name, owner = ticket.id, ticket.owner
        async with self._beginning.setdefault(name, asyncio.Lock()):
            kept = await self._journal.claim(name, owner)
            if kept is not None and kept.done:
                return kept.record, kept.parts[0], True
            result = await work()
            try:
                epoch = kept.epoch if kept is not None else await self._journal.create(ticket)
                await self._journal.append(name, epoch, result, done=True)
            except (StreamExists, StreamFenced):  # another gateway was faster
                kept = await self._journal.claim(name, owner)
                if kept is None or not kept.done:
                    raise
                return kept.record, kept.parts[0], True
            return ticket, result, False

    def _go_on(self, kept: StoredStream, resume: Continue) -> DurableStream:
        deltas = tuple(map(decode, kept.parts))
        if kept.done:
            recording = self._new(kept.record, kept.epoch)
            recording.ended(deltas)
            if len(self._finished) < _MOST_FINISHED:
                self._finished[kept.record.id] = recording
            return recording
        past: dict[int, PriorOutput] = {}
        for delta in deltas:
            past.setdefault(delta.choice, PriorOutput()).add(delta)
        choices = max(past, default=-1) + 1
        history = tuple(past.get(choice, PriorOutput()) for choice in range(choices))
        log.info("the stream %s goes on after %d events", kept.record.id, len(deltas))
        return self._run(kept.record, kept.epoch, resume(kept.record, history), deltas)

    def _new(self, ticket: StreamRecord, epoch: int) -> DurableStream:
        return DurableStream(ticket, self._journal, epoch, self._grace, self._turns)

    def _run(
        self,
        ticket: StreamRecord,
        epoch: int,
        events: AsyncGenerator[Event, None] | AsyncGenerator[OutputDelta, None],
        past: tuple[OutputDelta, ...] = (),
    ) -> DurableStream:
        self._here = {name: r for name, r in self._here.items() if r.running}
        recording = self._new(ticket, epoch)
        recording.resumed = epoch > 1
        recording.start(events, past)
        self._here[ticket.id] = recording
        return recording

    async def _guard(self) -> None:
        while True:
            await asyncio.sleep(_GUARD_SECONDS)
            if self._cut_off() and (running := [r for r in self._here.values() if r.running]):
                log.warning("cut off from the scheduler: %d streams go elsewhere", len(running))
                for recording in running:
                    recording.leave()

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_SECONDS)
            self._finished.clear()
            with contextlib.suppress(Unavailable):  # the journal has logged it
                await self._journal.prune()


def _beyond() -> InvalidRequest:
    return InvalidRequest(
        "Invalid Last-Event-ID header: the stream has not come so "
        "far. Send the id of its last event.",
        code="invalid_value",
    )


def _paused() -> Unavailable:
    return Unavailable(
        "This stream was paused. Resume it at /v1/streams/{id}.",
        code="stream_paused",
        retry_after=1,
    )


__all__ = ["DurableStream", "DurableStreams", "ReplayCursor", "StreamFenced"]
