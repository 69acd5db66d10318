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
"""Ended streams that are stored in memory for their next reader."""
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
        self, record: StreamRecord, journal: Journal, epoch: int, grace: float, turns: Turns
    ) -> None:
        self.record = record
        self._turns = turns
        self._shared: SharedTranscript | None = None
        self._journal, self._epoch, self._grace = journal, epoch, grace
        self._deltas: list[OutputDelta] = []
        self._error: BatonError | None = None
        self._readers = 0
        self._changed = asyncio.Event()
        self._alone: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._complete = self._released = False
        self.resumed = False
        """True if another run, here or elsewhere, began the stream."""
        self._journaled = True
        """True while the journal has every delta."""

    def start(
        self, events: AsyncGenerator[Event, None], prior: tuple[OutputDelta, ...] = ()
    ) -> None:
        """Begin to record the deltas that follow `prior`."""
        self._deltas = list(prior)
        self._task = asyncio.create_task(self._record(events))
        self._watch()

    def ended(self, deltas: tuple[OutputDelta, ...]) -> None:
        """Mark the stream as finished with these deltas."""
        self._deltas, self._complete = list(deltas), True

    @property
    def running(self) -> bool:
        """True while this gateway writes the stream."""
        return self._task is not None and not self._task.done()

    async def deltas(self, cursor: ReplayCursor) -> AsyncGenerator[OutputDelta, None]:
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
                await self._more(cursor)
        finally:
            self._exit()

    async def payloads(
        self, transcript: Transcript, started: Started, cursor: ReplayCursor
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
                    await self._more(cursor)
        finally:
            self._exit()

    async def _more(self, cursor: ReplayCursor) -> None:
        """Wait for a delta or the end. Raises the error that ended the generation."""
        if cursor.replaying:
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
            self._released = True
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
            # A resumed stream can be resumed again: the only problem is an unavailable service.
            log.warning("the stream %s has to wait: %s", self.record.id, error.message)
            self._error = _paused() if self.resumed else error
        except BatonError as error:
            self._error = error
        except asyncio.CancelledError:
            self._error = GatewayPartitioned() if self._released else _paused()
            raise
        except Exception:
            log.exception("the stream %s broke off", self.record.id)
            self._error = ServerFault(FAULT)
        finally:
            await events.aclose()
            self._tell()

    async def _keep(self, part: bytes, *, done: bool = False) -> None:
        """Append a part. If the journal fails, the stream continues in memory only."""
        if not self._journaled:
            return
        try:
            await self._journal.append(self.record.id, self._epoch, part, done=done)
        except Unavailable:
            log.error("the stream %s is not durable from here on", self.record.id)
            self._journaled = False

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
        self._running: dict[str, DurableStream] = {}
        self._finished: dict[str, DurableStream] = {}
        """Some streams from the journal that have ended, until the next prune."""
        self._turns = Turns()
        self._lookups = WeakValueDictionary[str, asyncio.Lock]()
        """Locks by id for lookups."""
        self._beginning = WeakValueDictionary[str, asyncio.Lock]()
        """Locks by id for streams that must begin only once."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> str:
        """Problem to report to the operator about the journal; empty if there is none."""
        return self._journal.problem

    async def start(self) -> None:
        """Start pruning old streams and watching for partitions."""
        self._tasks = [asyncio.create_task(self._prune()), asyncio.create_task(self._guard())]

    async def close(self) -> None:
        """Stop all generations and close the journal."""
        await cancel_tasks(*self._tasks)
        await asyncio.gather(*(recording.stop() for recording in self._running.values()))
        await self._journal.close()

    async def record(
        self, record: StreamRecord, events: AsyncGenerator[OutputDelta, None]
    ) -> DurableStream:
        """Make a new stream durable. Raises `Unavailable` when the journal is unavailable."""
        try:
            epoch = await self._journal.create(record)
        except BaseException:
            await events.aclose()
            raise
        return self._run(record, epoch, events)

    async def find(self, name: str, owner: str, resume: Continue) -> DurableStream | None:
        """Return a stream of this owner, running here or resumed from the journal.

        Raises `GatewayPartitioned` when this gateway is cut off; another gateway may be running the
        stream.
        """
        if self._cut_off():
            raise GatewayPartitioned
        async with self._lookups.setdefault(name, asyncio.Lock()):
            stream = self._running.get(name)
            if stream is None or not stream.running:
                stream = self._finished.get(name)
            if stream is not None:
                return stream if stream.record.owner == owner else None
            stored = await self._journal.claim(name, owner)
            return None if stored is None else self._restore(stored, resume)

    async def once(
        self,
        name: str,
        owner: str,
        resume: Continue,
        begin: Callable[[], Awaitable[DurableStream]],
    ) -> tuple[DurableStream, bool]:
        """Return the stream of this name and whether it existed; create it with `begin` if not.

        Concurrent callers wait. Raises what `find` and `begin` raise.
        """
        async with self._beginning.setdefault(name, asyncio.Lock()):
            stream = await self.find(name, owner, resume)
            if stream is not None:
                return stream, True
            try:
                return await begin(), False
            except StreamExists:  # Another gateway was faster.
                stream = await self.find(name, owner, resume)
                if stream is None:
                    raise
                return stream, True

    async def result_once(
        self, record: StreamRecord, work: Callable[[], Awaitable[bytes]]
    ) -> tuple[StreamRecord, bytes, bool]:
        """Run `work` at most once for the id of this record. Returns the record and the result of
        the first run, and whether that was an earlier call.

        The journal stores the result as a stream of one part. Raises `Unavailable`, and what `work`
        raises.
        """
        name, owner = record.id, record.owner
        async with self._beginning.setdefault(name, asyncio.Lock()):
            stored = await self._journal.claim(name, owner)
            if stored is not None and stored.done:
                return stored.record, stored.parts[0], True
            result = await work()
            try:
                epoch = stored.epoch if stored is not None else await self._journal.create(record)
                await self._journal.append(name, epoch, result, done=True)
            except (StreamExists, StreamFenced):  # Another gateway was faster.
                stored = await self._journal.claim(name, owner)
                if stored is None or not stored.done:
                    raise
                return stored.record, stored.parts[0], True
            return record, result, False

    def _restore(self, stored: StoredStream, resume: Continue) -> DurableStream:
        deltas = tuple(map(decode, stored.parts))
        if stored.done:
            recording = self._new(stored.record, stored.epoch)
            recording.ended(deltas)
            if len(self._finished) < _MOST_FINISHED:
                self._finished[stored.record.id] = recording
            return recording
        prior: dict[int, PriorOutput] = {}
        for delta in deltas:
            prior.setdefault(delta.choice, PriorOutput()).add(delta)
        choices = max(prior, default=-1) + 1
        history = tuple(prior.get(choice, PriorOutput()) for choice in range(choices))
        log.info("the stream %s goes on after %d events", stored.record.id, len(deltas))
        return self._run(stored.record, stored.epoch, resume(stored.record, history), deltas)

    def _new(self, record: StreamRecord, epoch: int) -> DurableStream:
        return DurableStream(record, self._journal, epoch, self._grace, self._turns)

    def _run(
        self,
        record: StreamRecord,
        epoch: int,
        events: AsyncGenerator[Event, None] | AsyncGenerator[OutputDelta, None],
        prior: tuple[OutputDelta, ...] = (),
    ) -> DurableStream:
        self._running = {name: r for name, r in self._running.items() if r.running}
        recording = self._new(record, epoch)
        recording.resumed = epoch > 1
        recording.start(events, prior)
        self._running[record.id] = recording
        return recording

    async def _guard(self) -> None:
        while True:
            await asyncio.sleep(_GUARD_SECONDS)
            if self._cut_off() and (running := [r for r in self._running.values() if r.running]):
                log.warning("cut off from the scheduler: %d streams go elsewhere", len(running))
                for recording in running:
                    recording.leave()

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_SECONDS)
            self._finished.clear()
            with contextlib.suppress(Unavailable):  # The journal has logged it.
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
