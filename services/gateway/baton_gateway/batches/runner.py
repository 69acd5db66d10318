"""Runs batches: each line as an ordinary request of this gateway, after all others.

    take a batch --> validate its file --> lines without a result --> requests --> results --> files

Progress is read from the store, so a batch whose gateway was killed continues at the next one: a
line that has a result is not run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable

from msgspec import structs

from baton.errors import NotFound, Unavailable
from baton.logs import logger
from baton.protocol import BACKGROUND
from baton_gateway.access.api_keys import ApiKeys
from baton_gateway.batches.line_runner import LineOutcome, LineRunner, cancelled_line, expired_line
from baton_gateway.batches.validation import InvalidBatch, lines_of
from baton_gateway.config import Config
from baton_gateway.durable.batch_record import MESSAGES, Batch, BatchErrors
from baton_gateway.durable.batch_store import BatchStore, Line, StoredBatch
from baton_gateway.durable.file_store import FileStore
from baton_gateway.http.disconnect import cancel_tasks

_HOLD_SECONDS = 10.0
"""Seconds after which a gateway that has not renewed its lease has lost the batch."""
_LOOK_SECONDS = 0.5
_PRUNE_SECONDS = 60.0
_AT_ONCE = 500
"""Lines per read or write transaction."""

log = logger(__name__)


class BatchRunner:
    """Life cycle: `start` once inside the event loop, `close` at the end."""

    def __init__(
        self,
        config: Config,
        batches: BatchStore,
        files: FileStore,
        lines: LineRunner,
        keys: ApiKeys,
    ) -> None:
        self._batches, self._files, self._lines, self._keys = batches, files, lines, keys
        self._limits = config
        self._holder = uuid.uuid4().hex
        self._room = asyncio.Semaphore(config.max_batch_requests)
        self._tasks: list[asyncio.Task[None]] = []
        self._running: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to look for batches."""
        self._tasks = [asyncio.create_task(self._look()), asyncio.create_task(self._prune())]

    async def close(self) -> None:
        """Stop. Lines without a result are run by the gateway that takes the batch next."""
        await cancel_tasks(*self._tasks, *self._running)

    async def _look(self) -> None:
        """Take batches that no gateway runs."""
        while True:
            stored = None
            if self._batches.is_used:
                with contextlib.suppress(Unavailable):  # the store has logged it
                    stored = await self._batches.take(self._holder, _HOLD_SECONDS)
            if stored is None:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            task = asyncio.create_task(self._keep(stored))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _prune(self) -> None:
        while True:
            if self._batches.is_used:
                with contextlib.suppress(Unavailable):  # the store has logged it
                    await self._files.prune()
            await asyncio.sleep(_PRUNE_SECONDS)

    async def _keep(self, stored: StoredBatch) -> None:
        """Run a batch while this gateway has its lease."""
        name = stored.batch.id
        work = asyncio.create_task(self._run(stored))
        try:
            while not work.done():
                await asyncio.wait((work,), timeout=_HOLD_SECONDS / 4)
                if not work.done() and not await self._batches.hold(
                    name, self._holder, _HOLD_SECONDS
                ):
                    return
            work.result()
        except Unavailable:
            log.warning("batch %s waits for its store", name)
        except Exception:
            log.exception("batch %s cannot go on now", name)
        finally:
            await cancel_tasks(work)

    async def _run(self, stored: StoredBatch) -> None:
        """Continue a batch until it ends."""
        name = stored.batch.id
        if stored.batch.status == "validating" and not await self._validate(stored):
            return
        status = await self._run_lines(stored)
        if status == "expired":
            await self._end_lines(name, expired_line)
        if status == "cancelled" and stored.batch.endpoint == MESSAGES:
            await self._end_lines(name, cancelled_line)
        await self._batches.change(name, _finalizing)
        expires = stored.batch.output_expires_after
        until = None if expires is None else stored.batch.created_at + expires
        await self._batches.write_results(name, status, until)

    async def _validate(self, stored: StoredBatch) -> bool:
        """Store the lines of a batch; a batch with an invalid file fails."""
        batch = stored.batch
        try:
            await self._files.get(batch.input_file_id, stored.owner)
            lines = await lines_of(
                self._files.read(batch.input_file_id), batch.endpoint, self._limits.max_batch_lines
            )
        except InvalidBatch as error:
            return await self._fail(batch, error)
        except NotFound as error:
            return await self._fail(
                batch, InvalidBatch.because("invalid_input_file", error.message)
            )
        for first in range(0, len(lines), _AT_ONCE):
            await self._batches.add_lines(batch.id, lines[first : first + _AT_ONCE])
        started = await self._batches.change(batch.id, _begun)
        return started.status in ("in_progress", "cancelling")

    async def _fail(self, batch: Batch, error: InvalidBatch) -> bool:
        """End a batch with the errors of its file. Returns False, since there is nothing to run."""
        now, errors = int(time.time()), BatchErrors(error.errors)
        await self._batches.change(
            batch.id,
            lambda b: structs.replace(b, status="failed", failed_at=now, errors=errors),
        )
        return False

    async def _run_lines(self, stored: StoredBatch) -> str:
        """Run the lines without a result. Returns the batch's final status."""
        name, after = stored.batch.id, -1
        running: list[asyncio.Task[None]] = []
        try:
            while lines := await self._batches.pending(
                name, after, self._limits.max_batch_requests
            ):
                for line in lines:
                    await self._room.acquire()
                    task = asyncio.create_task(self._answer(stored, line))
                    task.add_done_callback(lambda _: self._room.release())
                    running.append(task)
                after = lines[-1].number
                if (ended := await self._ended(stored)) != "completed":
                    break
            await asyncio.gather(*running)
            return await self._ended(stored) if not lines else ended
        finally:
            await cancel_tasks(*running)

    async def _ended(self, stored: StoredBatch) -> str:
        """The final status of a batch if no more lines are run."""
        current = await self._batches.get(stored.batch.id, stored.owner)
        if current.status == "cancelling":
            return "cancelled"
        return "expired" if time.time() >= current.expires_at else "completed"

    async def _answer(self, stored: StoredBatch, line: Line) -> None:
        """Run one line until it has a result, or the batch ends first."""
        key = self._keys.current(stored.key)
        outcome: LineOutcome | None = None
        while outcome is None:
            outcome, wait = await self._lines.run(line, stored.batch.endpoint, key, BACKGROUND)
            if outcome is None:
                await asyncio.sleep(wait)
                if await self._ended(stored) != "completed":
                    return
        await self._batches.answer(stored.batch.id, line.number, outcome.result, ok=outcome.ok)

    async def _end_lines(self, name: str, result: Callable[[Line], bytes]) -> None:
        """Store this result for every line without one."""
        while lines := await self._batches.pending(name, -1, _AT_ONCE):
            for line in lines:
                await self._batches.answer(name, line.number, result(line), ok=False)


def _begun(batch: Batch) -> Batch:
    if batch.status != "validating":
        return batch
    return structs.replace(batch, status="in_progress", in_progress_at=int(time.time()))


def _finalizing(batch: Batch) -> Batch:
    status = batch.status if batch.status == "cancelling" else "finalizing"
    return structs.replace(batch, status=status, finalizing_at=int(time.time()))
