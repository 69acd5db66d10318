"""Background responses: each is a durable stream that a gateway runs to its end.

    begin ----> journal, store, job ----> BackgroundRun ----> end stored, job deleted
                          ^                    |
                          |  gateway lost      |  renews the job
                          +--------------------+
    a job whose lease expires is due: the gateway that takes it continues the stream

Conflicts between two gateways are resolved by the journal, which fences off the older run, and by
the store, which accepts only the first end of a response.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette

from baton.errors import BatonError, InvalidRequest, NotFound, RateLimited, ServerFault, Unavailable
from baton.logs import logger
from baton_gateway.access.api_keys import ApiKeys
from baton_gateway.access.rate_limits import RateLimiter
from baton_gateway.api.resumption.continuation import continuation, started_of, writer_of
from baton_gateway.durable.conversation_store import ConversationStore
from baton_gateway.durable.job import Job, JobDetails, JobStore
from baton_gateway.durable.journal import StreamFenced, StreamRecord
from baton_gateway.durable.object_store import ObjectStore
from baton_gateway.durable.response_store import ResponseStore, StoredResponse
from baton_gateway.durable.streams import DurableStream, DurableStreams, ReplayCursor
from baton_gateway.engine import Engine
from baton_gateway.generation.output import Event
from baton_gateway.generation.request import PriorOutput
from baton_gateway.http.clientless_request import clientless_request
from baton_gateway.http.disconnect import cancel_tasks
from baton_gateway.http.errors import FAULT, GatewayPartitioned
from baton_gateway.streaming.response_transcript import ResponseTranscript
from baton_gateway.streaming.response_writer import ResponseWriter

_LEASE_SECONDS = 8.0
"""Lease time: how long a response waits at most after its gateway was killed."""
_SWEEP_SECONDS = 1.0
_RETRY_SECONDS = 5.0
"""Seconds before a response is retried that stopped because a service was unavailable."""
_MOST_ATTEMPTS = 100
_FINAL = "queue_timeout"
"""Code of the 503 that ends a response whose own time limit has passed."""

log = logger(__name__)


@dataclass(slots=True, eq=False)
class BackgroundRun:
    """A response that this gateway runs."""

    job: Job
    stream: DurableStream
    task: asyncio.Task[None] | None = None


class BackgroundResponses:
    """The background responses of one gateway. Life cycle: `start` once, `close` at the end."""

    def __init__(
        self,
        app: Starlette,
        engine: Engine,
        streams: DurableStreams,
        objects: ObjectStore,
        keys: ApiKeys,
        limiter: RateLimiter,
    ) -> None:
        self._app, self._engine, self._streams = app, engine, streams
        self._keys, self._limiter = keys, limiter
        self._responses, self._conversations = ResponseStore(objects), ConversationStore(objects)
        self._jobs = JobStore(objects, _LEASE_SECONDS)
        self._runs: dict[str, BackgroundRun] = {}
        self._cancelling: dict[str, asyncio.Event] = {}
        """Names of responses that are being cancelled; set once their end is stored."""
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look for responses without a gateway."""
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Stop all runs and release their jobs to other gateways."""
        if self._sweeper is not None:
            await cancel_tasks(self._sweeper)
        runs, self._runs = list(self._runs.values()), {}
        await cancel_tasks(*(run.task for run in runs if run.task is not None))
        for run in runs:
            await run.stream.stop()
            with contextlib.suppress(Unavailable):  # the store has logged it
                await self._jobs.release(run.job)

    async def begin(self, owner: str, details: JobDetails, stream: DurableStream) -> None:
        """Run a stored response to its end, with or without a reader."""
        self._run(await self._jobs.begin(owner, details), stream)

    async def stream(self, name: str, owner: str) -> DurableStream | None:
        """Return the stream of a response, which this gateway runs from now on if it has not ended.
        None when its time limit has passed.

        Raises `Unavailable` when another gateway takes it at the same time.
        """
        if (run := self._runs.get(name)) is not None:
            return run.stream
        if not (await self._responses.get(name, owner)).running:
            return await self._sealed(name, owner)
        job = await self._jobs.take(name, owner)
        if job is None or not await self._resume(job):
            raise Unavailable("This response is changing its gateway. Try again.", retry_after=1)
        return self._runs[name].stream

    async def final(self, name: str, owner: str) -> StoredResponse:
        """Wait until this gateway no longer runs a response, and return it. Raises `NotFound`."""
        run = self._runs.get(name)
        if run is not None and run.task is not None:
            await asyncio.wait([run.task])
        if (ended := self._cancelling.get(name)) is not None:
            await ended.wait()
        return await self._responses.get(name, owner)

    async def cancel(self, name: str, owner: str) -> StoredResponse:
        """End a response at its current position and return it. Raises `NotFound`."""
        if not (await self._responses.get(name, owner)).running:
            return await self._responses.get(name, owner)
        ended = self._cancelling[name] = asyncio.Event()
        try:
            await self._cancel(name, owner)
        finally:
            ended.set()
            self._cancelling.pop(name, None)
        return await self._responses.get(name, owner)

    async def _cancel(self, name: str, owner: str) -> None:
        run = self._runs.pop(name, None)
        if run is not None:
            await cancel_tasks(*([run.task] if run.task else []))
            await run.stream.stop()
        stream = await self._sealed(name, owner)
        if stream is not None:
            transcript = await self._transcript(stream.record)
            await _read(stream, transcript)
            transcript.cancel()
            await self._responses.finish(owner, msgspec.to_builtins(transcript.response))
        job = await self._jobs.take(name, owner)
        if job is not None:
            await self._jobs.end(job)

    async def _sealed(self, name: str, owner: str) -> DurableStream | None:
        """Return a stream with its current content; nothing can be added to it any more."""
        return await self._streams.find(name, owner, lambda ticket, prior: _nothing())

    async def _sweep(self) -> None:
        last_error = ""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self._renew()
                for job in await self._jobs.take_due():
                    await self._take(job)
                last_error = ""
            except BatonError as error:
                if error.message != last_error:
                    log.warning("background responses wait: %s", error.message)
                last_error = error.message
            except Exception:
                log.exception("background responses cannot be looked after")

    async def _renew(self) -> None:
        for name, run in list(self._runs.items()):
            renewed = await self._jobs.renew(run.job)
            if renewed is not None:
                run.job = renewed
            elif self._runs.get(name) is run and run.task is not None:
                log.info("the response %s is another gateway's", name)
                run.task.cancel()

    async def _take(self, job: Job) -> None:
        run = self._runs.get(job.details.response)
        if run is not None:
            run.job = job
            return
        try:
            await self._resume(job)
        except GatewayPartitioned:
            await self._jobs.release(job, _RETRY_SECONDS)

    async def _resume(self, job: Job) -> bool:
        """Continue a response. False if another gateway has it, or it cannot be continued."""
        counted = await self._jobs.attempt(job)
        if counted is None:
            return False
        if counted.details.attempts > _MOST_ATTEMPTS:
            await self._give_up(counted, "It was continued too often. Send it again.")
            return False
        engine = self._engine

        def go_on(
            ticket: StreamRecord, prior: tuple[PriorOutput, ...]
        ) -> AsyncGenerator[Event, None]:
            quota = self._limiter.quota(self._keys.by_name(counted.details.key))
            number = ticket.id.partition("_")[2]
            request = clientless_request(self._app, number, "/v1/responses", quota)
            engine.timelines.keep(request.scope["state"]["timeline"], ticket.owner)
            return continuation(request)(ticket, prior)

        stream = await self._streams.find(counted.details.response, counted.owner, go_on)
        if stream is None:
            await self._give_up(counted, "It was not continued in time. Send it again.")
            return False
        self._run(counted, stream)
        return True

    async def _give_up(self, job: Job, reason: str) -> None:
        error = {"code": "server_error", "message": reason}
        with contextlib.suppress(NotFound):  # it was deleted
            stored = await self._responses.get(job.details.response, job.owner)
            await self._responses.finish(
                job.owner, stored.response | {"status": "failed", "error": error}
            )
        await self._jobs.end(job)

    def _run(self, job: Job, stream: DurableStream) -> None:
        run = BackgroundRun(job, stream)
        self._runs[job.details.response] = run
        run.task = asyncio.create_task(self._follow(run))

    async def _follow(self, run: BackgroundRun) -> None:
        name = run.job.details.response
        try:
            await self._end(run, await self._response(run))
        except StreamFenced:
            log.info("the response %s goes on at another gateway", name)
        except (Unavailable, RateLimited) as error:
            log.warning("the response %s has to wait: %s", name, error.message)
            with contextlib.suppress(Unavailable):  # The job becomes due by itself.
                await self._jobs.release(run.job, _RETRY_SECONDS)
        except Exception:
            log.exception("the response %s could not be ended", name)
        finally:
            if self._runs.get(name) is run:
                del self._runs[name]

    async def _response(self, run: BackgroundRun) -> dict[str, Any]:
        """Return a response once it has ended. Raises errors that a retry may avoid."""
        transcript = await self._transcript(run.stream.record)
        try:
            await _read(run.stream, transcript)
            deque(transcript.ending(), maxlen=0)
        except (StreamFenced, RateLimited):
            raise
        except BatonError as error:
            if isinstance(error, Unavailable) and error.code != _FINAL:
                raise
            transcript.failed(error)
        except Exception:
            log.exception("the response %s broke off", run.stream.record.id)
            transcript.failed(ServerFault(FAULT))
        response: dict[str, Any] = msgspec.to_builtins(transcript.response)
        return response

    async def _end(self, run: BackgroundRun, response: dict[str, Any]) -> None:
        """Store the end of a response. Each step is idempotent: the next gateway may repeat it."""
        details, owner = run.job.details, run.job.owner
        if response["status"] == "failed":
            await self._sealed(details.response, owner)
        elif details.conversation is not None:
            await self._append(details, owner, response)
        await self._responses.finish(owner, response)
        await self._jobs.end(run.job)

    async def _append(self, details: JobDetails, owner: str, response: dict[str, Any]) -> None:
        assert details.conversation is not None
        stored = await self._responses.get(details.response, owner)
        input_items = stored.input[len(stored.input) - details.num_input :]
        try:
            await self._conversations.append(
                details.conversation, owner, [*input_items, *response["output"]]
            )
        except InvalidRequest as error:  # The conversation was deleted, or is full.
            log.warning("the response %s is in no conversation: %s", details.response, error)

    async def _transcript(self, ticket: StreamRecord) -> ResponseTranscript:
        """Return a transcript of a stream after its opening events."""
        writer = await writer_of(self._app, ticket)
        assert isinstance(writer, ResponseWriter)
        transcript = writer.transcript()
        deque(transcript.opening(started_of(ticket)), maxlen=0)
        return transcript


async def _nothing() -> AsyncGenerator[Event, None]:
    for event in tuple[Event, ...]():
        yield event


async def _read(stream: DurableStream, transcript: ResponseTranscript) -> None:
    """Read a stream to its end. Raises the error that ended it."""
    async for delta in stream.deltas(ReplayCursor()):
        deque(transcript.events(delta), maxlen=0)
