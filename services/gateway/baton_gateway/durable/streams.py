"""Durable streams: they outlive their connection, and in a journal also their gateway.

    engine -- deltas --> Recording --> journal
                             |
                             +------> any number of readers, each from the first delta on

A delta is in the journal before anybody sees it. So whatever a client has seen, another gateway
knows too, and continues the same token logs: nothing is missing and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from weakref import WeakValueDictionary

from baton.errors import BatonError, InvalidRequest, ServerFault, Unavailable
from baton.logs import logger
from baton_gateway.durable.journal import (
    Journal,
    StoredStream,
    StreamFenced,
    StreamRecord,
    decode,
    encode,
)
from baton_gateway.generation.output import Event, OutputDelta
from baton_gateway.generation.request import PriorOutput
from baton_gateway.http.disconnect import cancel_tasks
from baton_gateway.http.errors import FAULT, GatewayPartitioned

_PRUNE_SECONDS = 30.0
_GUARD_SECONDS = 0.1
"""How often it is asked whether this gateway is cut off."""

Continue = Callable[[StreamRecord, tuple[PriorOutput, ...]], AsyncGenerator[Event, None]]
"""Runs a stream on after what its choices have produced."""

log = logger(__name__)


class DurableStream:
    """One durable stream: written by a task, read from the first delta on by any number of readers.

    It pauses when nobody has read it for `grace` seconds: the work is aborted, and whoever comes
    later continues it from the journal.
    """

    def __init__(self, ticket: StreamRecord, journal: Journal, epoch: int, grace: float) -> None:
        self.record = ticket
        self._journal, self._epoch, self._grace = journal, epoch, grace
        self._deltas: list[OutputDelta] = []
        self._error: BatonError | None = None
        self._readers = 0
        self._changed = asyncio.Event()
        self._alone: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._complete = self._left = False
        self._kept = True
        """The journal has every delta so far."""

    def start(
        self, events: AsyncGenerator[Event, None], past: tuple[OutputDelta, ...] = ()
    ) -> None:
        """Begin to record what follows `past`."""
        self._deltas = list(past)
        self._task = asyncio.create_task(self._record(events))
        self._watch()

    def ended(self, deltas: tuple[OutputDelta, ...]) -> None:
        """Nothing follows these."""
        self._deltas, self._complete = list(deltas), True

    @property
    def running(self) -> bool:
        """It is being written here."""
        return self._task is not None and not self._task.done()

    async def deltas(self, place: ReplayCursor) -> AsyncGenerator[OutputDelta, None]:
        """Every delta from the first on. Raises what the run ended with."""
        self._readers += 1
        if self._alone is not None:
            self._alone.cancel()
        at = 0
        try:
            while True:
                while at < len(self._deltas):
                    yield self._deltas[at]
                    at += 1
                if self._complete:
                    return
                if place.replaying:
                    raise _beyond()
                if self._error is not None:
                    raise self._error
                await self._changed.wait()
        finally:
            self._readers -= 1
            self._watch()

    async def stop(self) -> None:
        """End the work; what is in the journal stays."""
        if self._alone is not None:
            self._alone.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def leave(self) -> None:
        """Let another gateway take it up: the work ends here, and so do the connections of its
        readers."""
        if self.running and self._task is not None:
            self._left = True
            self._task.cancel()

    def _watch(self) -> None:
        if not self._readers and self.running:
            self._alone = asyncio.get_running_loop().call_later(self._grace, self._pause)

    def _pause(self) -> None:
        log.info("nobody reads the stream %s: it pauses", self.record.id)
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
        """Write a part. Without its journal a stream goes on, but it ends with this process."""
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
    """How far a reader has come."""

    def __init__(self) -> None:
        self.replaying = False
        """It skips what its client has seen, all of which must have been recorded."""


class DurableStreams:
    """The durable streams of one gateway. Life cycle: `start` once, `close` at the end."""

    def __init__(
        self, journal: Journal, grace: float, cut_off: Callable[[], bool] = lambda: False
    ) -> None:
        """`cut_off`: whether other gateways should take the streams of this one."""
        self._journal, self._grace, self._cut_off = journal, grace, cut_off
        self._here: dict[str, DurableStream] = {}
        self._taking = WeakValueDictionary[str, asyncio.Lock]()
        """By id, of streams that are looked for just now."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to forget what is old, and to look whether this gateway is cut off."""
        self._tasks = [asyncio.create_task(self._prune()), asyncio.create_task(self._guard())]

    async def close(self) -> None:
        """Pause what runs, close the journal."""
        await cancel_tasks(*self._tasks)
        await asyncio.gather(*(recording.stop() for recording in self._here.values()))
        await self._journal.close()

    async def record(
        self, ticket: StreamRecord, events: AsyncGenerator[OutputDelta, None]
    ) -> DurableStream:
        """Make a stream durable that has just begun. Raises `Unavailable` when it cannot be."""
        try:
            epoch = await self._journal.create(ticket)
        except BaseException:
            await events.aclose()
            raise
        return self._run(ticket, epoch, events)

    async def find(self, name: str, owner: str, resume: Continue) -> DurableStream | None:
        """A stream of this owner: as it runs here, else continued from the journal.

        Raises `GatewayPartitioned` where it could not go on: whoever runs it meanwhile is left in
        peace.
        """
        if self._cut_off():
            raise GatewayPartitioned
        async with self._taking.setdefault(name, asyncio.Lock()):
            here = self._here.get(name)
            if here is not None and here.running:
                return here if here.record.owner == owner else None
            kept = await self._journal.claim(name, owner)
            return None if kept is None else self._go_on(kept, resume)

    def _go_on(self, kept: StoredStream, resume: Continue) -> DurableStream:
        deltas = tuple(map(decode, kept.parts))
        if kept.done:
            recording = DurableStream(kept.record, self._journal, kept.epoch, self._grace)
            recording.ended(deltas)
            return recording
        past: dict[int, PriorOutput] = {}
        for delta in deltas:
            past.setdefault(delta.choice, PriorOutput()).add(delta)
        choices = max(past, default=-1) + 1
        history = tuple(past.get(choice, PriorOutput()) for choice in range(choices))
        log.info("the stream %s goes on after %d events", kept.record.id, len(deltas))
        return self._run(kept.record, kept.epoch, resume(kept.record, history), deltas)

    def _run(
        self,
        ticket: StreamRecord,
        epoch: int,
        events: AsyncGenerator[Event, None] | AsyncGenerator[OutputDelta, None],
        past: tuple[OutputDelta, ...] = (),
    ) -> DurableStream:
        self._here = {name: r for name, r in self._here.items() if r.running}
        recording = DurableStream(ticket, self._journal, epoch, self._grace)
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
            with contextlib.suppress(Unavailable):  # The journal has said so in the log.
                await self._journal.prune()


def _beyond() -> InvalidRequest:
    return InvalidRequest(
        "Invalid Last-Event-ID header: the stream has not come so far.", code="invalid_value"
    )


def _paused() -> Unavailable:
    return Unavailable(
        "This stream was paused. Resume it at /v1/streams/{id}.",
        code="stream_paused",
        retry_after=1,
    )


__all__ = ["DurableStream", "DurableStreams", "ReplayCursor", "StreamFenced"]
