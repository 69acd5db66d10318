"""Runs generations: encode, admit, submit, collect, clean up.

    generate --EncodeChat--> tokenizer --Encoded--> admission --Submit--> scheduler
    generate --Prepare--> mm-preprocess --Prepared--> admission
    scheduler --Tokens--> token log --Decode--> tokenizer --Text--> stream --> generate's caller

One task per connection receives; all state belongs to the event loop and needs no lock. When a
caller stops iterating, its sequences are aborted at once.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import count
from typing import Any

from msgspec import structs

from baton import __version__
from baton.errors import BatonError, InvalidRequest, ServerFault, Unavailable
from baton.logs import logger
from baton.net.discovery import Directory
from baton.net.handshake import BEAT_SECONDS, incarnation
from baton.net.topology import FRONTEND, MEDIA, TOKENIZE
from baton.process.lifecycle import default_name
from baton.protocol import (
    DecodedText,
    Detokenized,
    Encoded,
    Hello,
    MediaItem,
    Message,
    Prepared,
    RequestError,
    VocabularyBytes,
)
from baton.telemetry import start, traceparent
from baton_gateway.beam_runner import BeamRunner
from baton_gateway.catalogue import Catalogue, ModelInfo
from baton_gateway.clients.connection import (
    Connect,
    Connection,
    Pool,
    wait_until,
)
from baton_gateway.clients.detokenizer import DetokenizerClient
from baton_gateway.clients.fleet_view import FleetView, snapshot
from baton_gateway.clients.mm_preprocess import MediaClient
from baton_gateway.clients.scheduler import SchedulerClient
from baton_gateway.clients.tokenizer import TokenizerClient
from baton_gateway.config import Config
from baton_gateway.generation.admission import (
    check_beams,
    check_ids,
    check_model,
    check_task,
    check_total,
    clamp_max_tokens,
    sampling_of,
    too_long,
)
from baton_gateway.generation.bad_words import encode_bad_words as encode_words
from baton_gateway.generation.beam_search import BeamSearch
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import Event, OutputDelta, Started
from baton_gateway.generation.output_queue import OutputQueue
from baton_gateway.generation.request import (
    BeamSearchOptions,
    EncodedPrompt,
    GenerationRequest,
    Prompt,
)
from baton_gateway.generation.sequence import Sequence
from baton_gateway.http.disconnect import cancel_tasks
from baton_gateway.http.errors import GatewayPartitioned
from baton_gateway.http.write_batch import WriteBatch
from baton_gateway.observability.metrics import Metrics, SystemCollector, Timing
from baton_gateway.observability.timeline_store import TimelineStore
from baton_gateway.structured_output.validator import GrammarValidator

_ENCODED_AT_ONCE = 16
"""Most prompts of one request that are encoded concurrently, to keep all tokenizers busy."""
_SETTLE_SECONDS = 5.0
_REFRESH_SECONDS = 1.0
"""Interval in seconds of directory lookups."""

log = logger(__name__)


class Engine:
    """Life cycle: `start` once inside the event loop, `generate` many times, `close` at the end."""

    def __init__(self, config: Config, directory: Directory, connect: Connect) -> None:
        self.config = config
        self.metrics = Metrics()
        self.draining = False
        """True once this process was asked to stop; new requests are then rejected."""
        self.timelines = TimelineStore(config.explained_requests)
        hello = Hello("gateway", default_name("gateway"), incarnation(), __version__)
        self._name = hello.name
        self._directory = directory
        self._fleet = FleetView(config.worker_hang_seconds)
        SystemCollector(self.metrics, lambda: self._fleet.stats)
        self._tokenize = Pool(TOKENIZE, hello, connect, _TokenizerListener(self))
        self._media = Pool(MEDIA, hello, connect, _MediaListener(self))
        self._scheduler = SchedulerClient(
            hello,
            connect,
            self._fleet,
            self.timelines,
            lambda s: self.decoding.add(s),
            config.failover_wait_seconds,
        )
        self.tokenizers = TokenizerClient(self._tokenize, config.service_wait_seconds)
        self.preprocessors = MediaClient(self._media, config.service_wait_seconds)
        self.catalogue = Catalogue(lambda: self._fleet.models, lambda: self.tokenizers.infos)
        self._burst = WriteBatch()
        self.decoding = DetokenizerClient(
            self._scheduler.live, self._tokenize.pick, self._scheduler.abort, self._burst
        )
        self._compiler = GrammarValidator(config.grammar_backend)
        self._handles = count(1)
        self._running = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect to the services in the directory and follow its changes."""
        await self._follow()
        self._tasks = [asyncio.create_task(self._refresh())]
        if self.config.shared_port:
            self._tasks.append(asyncio.create_task(self._guard()))

    async def settle(self) -> None:
        """With a shared port, wait until this gateway is healthy, at most `_SETTLE_SECONDS`."""
        if self.config.shared_port:
            await wait_until(lambda: not self.unhealthy_reasons(), _SETTLE_SECONDS)

    async def close(self) -> None:
        """Abort running sequences and close every connection."""
        await cancel_tasks(*self._tasks)
        await self._scheduler.abort(list(self._scheduler.live.values()))
        await self._compiler.close()
        for pool in (self._tokenize, self._media, self._scheduler.pool):
            await pool.close()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Yield `Started`, then the deltas of all choices as they arrive.

        Raises `BatonError`: before `Started` for an invalid request, afterwards for a failed run.
        """
        account = request.timeline
        account.enter("admission")
        span = start("generate", request.trace, {"baton.request": request.id})
        trace = traceparent(span) or request.trace
        began, timing = time.monotonic(), Timing(self.metrics)
        request.direct_sink.write_batch = self._burst
        running = len(request.prompts) * request.n - sum(
            past.ended for past in request.prior_outputs
        )

        def write(delta: OutputDelta) -> bool:
            written = request.direct_sink.write(delta)
            if written:
                timing.tokens(delta.choice, len(delta.tokens))
            return written

        stream = OutputQueue(running, write)
        timer = asyncio.get_running_loop().call_later(
            self.config.request_timeout_seconds, stream.fail, _timed_out()
        )
        sequences: list[Sequence] = []
        self._running += 1
        try:
            request.quota.acquire(running)
            sequences = await self._prepare(replace(request, trace=trace), stream, began)
            prompts = tuple(s.prompt for s in sequences[:: request.n])
            if not request.prior_outputs:
                await request.quota.charge_prompt(sum(map(len, prompts)))
            if request.beams is None:
                choices = {s.handle: s.choice for s in sequences if not s.ended}
                self.timelines.submitted(account, choices)
                await self._scheduler.submit(s for s in sequences if not s.ended)
            timing.started(sum(map(len, prompts)))
            yield Started(prompts)
            if request.beams is not None:
                await self._search(request, request.beams, sequences, began)
            async for delta in stream:
                if delta.vector is None:
                    timing.tokens(delta.choice, len(delta.tokens))
                yield delta
        except BatonError as error:
            account.failed(error.code)
            raise
        finally:
            account.enter("respond")
            timer.cancel()
            self._running -= 1
            timing.ended(complete=bool(sequences) and all(s.ended for s in sequences))
            await self._release(sequences)
            request.quota.release()
            await request.quota.charge_completion(sum(len(s.log) - s.inherited for s in sequences))
            span.end()

    async def check_admission(self, name: str | None, patience: float | None = None) -> ModelInfo:
        """Return a model once a worker of it is available.

        Raises `Unavailable` after `patience` seconds, by default `service_wait_seconds`, and
        `NotFound` for an unknown name.
        """
        patience = self.config.service_wait_seconds if patience is None else patience
        if self.draining:
            raise Unavailable(
                "This server is shutting down. Send the request again.",
                code="shutting_down",
                retry_after=1,
            )
        if self.partitioned:
            raise GatewayPartitioned
        if self._running > self.config.max_concurrent_requests:
            raise Unavailable("Too many requests are in flight. Try again later.", retry_after=1)
        facts = await self.model_info(name, patience)
        able = await wait_until(
            lambda: self._fleet.has_ready_worker(time.monotonic(), facts.model), patience
        )
        if not self._scheduler.pool.ready():
            raise Unavailable("The scheduler is not connected. Try again later.", retry_after=2)
        if not able:
            raise Unavailable(
                "No worker is ready for this model. Try again later.",
                code="no_worker",
                retry_after=2,
            )
        return await self.model_info(name, patience)

    async def model_info(self, name: str | None, patience: float | None = None) -> ModelInfo:
        """Return a model by name, None being the only one. Waits briefly for a tokenizer.

        Raises `Unavailable` if none comes, `NotFound` for an unknown name.
        """
        patience = self.config.service_wait_seconds if patience is None else patience
        await wait_until(lambda: check_model(name, self.catalogue) is not None, patience)
        facts = check_model(name, self.catalogue)
        if facts is None:
            raise _no_tokenizer()
        return facts

    async def models(self) -> list[ModelInfo]:
        """Return every model. Waits briefly for a tokenizer, then raises `Unavailable`."""
        patience = self.config.service_wait_seconds
        if not await wait_until(lambda: bool(self.tokenizers.infos), patience):
            raise _no_tokenizer()
        return self.catalogue.entries()

    async def vocabulary(self, name: str) -> Vocabulary:
        """Return the vocabulary of a model, for log-probabilities."""
        facts = await self.model_info(name)
        return Vocabulary(await self.tokenizers.of(facts.tokenizer).pieces())

    async def reset_cache(self) -> int:
        """Empty the prefix cache. Returns the number of pages that it held. Raises
        `Unavailable`."""
        return await self._scheduler.reset_cache(max(1.0, self.config.service_wait_seconds))

    @property
    def partitioned(self) -> bool:
        """True if the scheduler is silent here but may be reachable from gateways on the same
        port."""
        return self.config.shared_port and self._scheduler.pool.silent()

    def unhealthy_reasons(self) -> list[str]:
        """Return the reasons why this gateway cannot serve; empty when it can."""
        if not self._scheduler.pool.ready() or self.partitioned:
            reasons = ["the scheduler does not answer"]
        else:
            reasons = self._fleet.unhealthy_reasons(time.monotonic())
        if not self.tokenizers.infos:
            reasons.append("no tokenizer answers")
        elif (names := [m.name for m in self._fleet.models]) and not any(
            map(self.catalogue.get, names)
        ):
            reasons.append(f"no tokenizer answers for {', '.join(names)}")
        if self.draining:
            reasons.append("this gateway is draining")
        return reasons

    def snapshot(self) -> dict[str, Any]:
        """Return the system as a JSON object; see `baton_gateway.clients.fleet_view.snapshot`."""
        me = {
            "service": "gateway",
            "name": self._name,
            "state": "draining" if self.draining else "ready",
            "detail": f"version {__version__}, {self._running} requests",
        }
        pools = {
            "tokenizer": self._tokenize,
            "mm-preprocess": self._media,
            "scheduler": self._scheduler.pool,
        }
        names = self.catalogue.names
        served = next(iter(self._fleet.models), None)
        return {
            "model": served.name if served else names[0] if names else "",
            "models": names,
            "max_model_len": served.max_model_len if served else 0,
            "vocab_size": served.vocab_size if served else 0,
            "task": served.pooling.task if served and served.pooling else "generate",
            **snapshot(self._fleet, pools, me),
        }

    async def _prepare(
        self, request: GenerationRequest, stream: OutputQueue, began: float
    ) -> list[Sequence]:
        """Prepare the sequences of a request for the scheduler. Raises `BatonError` for invalid
        requests."""
        # A resumed stream waits as long as an uninterrupted one would.
        patience = (
            self.config.failover_wait_seconds
            if request.prior_outputs
            else self.config.service_wait_seconds
        )
        facts = check_task(request, await self.check_admission(request.model, patience))
        check_ids(request, facts)
        check_beams(request, facts)
        await self._try_grammar(request)
        request.timeline.enter("encode")
        encoded = await self._encode(request, facts, request.trace)
        total = sum(len(one.ids) for one in encoded)
        check_total(request, total, self.config.max_pooling_tokens)
        request = await self._encode_words(request, facts)
        request.timeline.enter("admission")
        _check_deadline(request, began)
        return self._sequences(request, encoded, facts, stream, began)

    async def _encode(
        self, request: GenerationRequest, facts: ModelInfo, trace: str
    ) -> list[EncodedPrompt]:
        """Encode every prompt. Counts towards the deadline."""
        try:
            async with asyncio.timeout(self.config.request_timeout_seconds):
                found: list[EncodedPrompt] = []
                for first in range(0, len(request.prompts), _ENCODED_AT_ONCE):
                    some = request.prompts[first : first + _ENCODED_AT_ONCE]
                    work = (self._encode_one(request, prompt, facts, trace) for prompt in some)
                    found += await asyncio.gather(*work)
                return found
        except TimeoutError as error:
            raise _timed_out() from error

    async def _encode_one(
        self, request: GenerationRequest, prompt: Prompt, facts: ModelInfo, trace: str
    ) -> EncodedPrompt:
        if isinstance(prompt, tuple):
            return EncodedPrompt(array("i", prompt))
        if isinstance(prompt, MediaItem):
            return await self.preprocessors.encode(prompt, facts.model, trace)
        tokenizers = self.tokenizers.of(facts.tokenizer)
        try:
            ids, second = await tokenizers.encode_pair(prompt, facts.max_model_len, trace)
        except InvalidRequest as error:
            if request.pooling is None:
                raise
            raise InvalidRequest(error.message, code=error.code, param=request.param) from error
        if len(ids) > facts.max_model_len:
            raise too_long(request, len(ids), facts)
        return EncodedPrompt(ids, second)

    async def _try_grammar(self, request: GenerationRequest) -> None:
        """Compile the grammar. Counts towards the deadline."""
        if request.constraint is None:
            return
        request.timeline.enter("grammar")
        try:
            async with asyncio.timeout(self.config.request_timeout_seconds):
                await self._compiler.check(request.constraint)
        except TimeoutError as error:
            raise _timed_out() from error

    async def _encode_words(
        self, request: GenerationRequest, facts: ModelInfo
    ) -> GenerationRequest:
        if not request.bad_words:
            return request
        words = await encode_words(request.bad_words, self.tokenizers.of(facts.tokenizer))
        return replace(request, sampling=structs.replace(request.sampling, bad_words=words))

    def _sequences(
        self,
        request: GenerationRequest,
        prompts: list[EncodedPrompt],
        facts: ModelInfo,
        stream: OutputQueue,
        began: float,
    ) -> list[Sequence]:
        # Images all have one length, so the limit for text does not apply.
        rooms = [0 if one.media else clamp_max_tokens(request, one.ids, facts) for one in prompts]
        limit = request.deadline_ms / 1000
        sequences = [
            Sequence(
                handle=self._handle(),
                request=request.id,
                model=facts.model,
                tokenizer=facts.tokenizer,
                choice=number * request.n + choice,
                prompt=one.ids,
                sampling=sampling_of(request, choice, room, facts),
                stream=stream,
                priority=request.priority,
                tenant=request.tenant,
                salt=request.salt,
                notes=request.admission_notes,
                stops=request.stops,
                stop_token_ids=request.sampling.stop_ids,
                include_stop=request.include_stop,
                skip_special=request.skip_special,
                trace=request.trace,
                deadline=began + limit if limit else None,
                account=request.timeline,
                pooling=request.pooling and structs.replace(request.pooling, second=one.second),
                media=one.media,
            )
            for number, (one, room) in enumerate(zip(prompts, rooms, strict=True))
            for choice in range(request.n)
        ]
        for sequence, past in zip(sequences, request.prior_outputs, strict=False):
            sequence.follow(past)
        return sequences

    async def _search(
        self,
        request: GenerationRequest,
        beams: BeamSearchOptions,
        sequences: list[Sequence],
        began: float,
    ) -> None:
        """Fill the logs of all choices by beam search, then decode them."""
        firsts = sequences[:: request.n]
        request.timeline.submitted({s.handle: s.choice for s in sequences}, "beam_search")
        searches = [
            BeamSearch(beams, frozenset(s.sampling.stop_ids), s.sampling.max_tokens) for s in firsts
        ]
        try:
            async with asyncio.timeout(
                self.config.request_timeout_seconds + began - time.monotonic()
            ):
                await BeamRunner(self._scheduler, self._handle).run(searches, firsts)
        except TimeoutError as error:
            raise _timed_out() from error
        request.timeline.enter("detokenise")
        for search, first in zip(searches, range(0, len(sequences), request.n), strict=True):
            choices = sequences[first : first + request.n]
            for sequence, beam in zip(choices, search.best(request.n), strict=True):
                sequence.write(beam.tokens, beam.logprobs, beam.reason)
                self._scheduler.live[sequence.handle] = sequence
        await self.decoding.add(sequences)

    def _handle(self) -> int:
        while (handle := next(self._handles) & 0xFFFFFFFF) in self._scheduler.live:
            pass
        return handle

    async def _release(self, sequences: list[Sequence]) -> None:
        """Stop sequences that still run and drop the state of all."""
        self._scheduler.forget(sequences)
        running = [s for s in sequences if not s.ended]
        await self._scheduler.abort(running)
        await self.decoding.close(running)
        for sequence in running:
            sequence.ended = True

    async def _follow(self) -> None:
        await self._tokenize.follow(self._directory.find(TOKENIZE))
        await self._media.follow(self._directory.find(MEDIA))
        first = self._directory.first(FRONTEND)
        await self._scheduler.pool.follow((first,) if first else ())

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            await self._follow()
            await self.decoding.place()

    async def _guard(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if self.partitioned:
                self._scheduler.leave()


class _TokenizerListener:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def joined(self, connection: Connection) -> None:
        log.info("the tokenizer at %s answers", connection.address)
        await self._engine.decoding.place()

    async def lost(self, connection: Connection) -> None:
        self._engine.tokenizers.lost(connection)
        await self._engine.decoding.lost(connection)

    async def received(self, connection: Connection, message: Message) -> None:
        if isinstance(message, DecodedText):
            await self._engine.decoding.receive(message, connection)
        elif isinstance(message, (Encoded, Detokenized, VocabularyBytes, RequestError)):
            self._engine.tokenizers.receive(message)


class _MediaListener:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def joined(self, connection: Connection) -> None:
        log.info("the media preprocessor at %s answers", connection.address)

    async def lost(self, connection: Connection) -> None:
        log.info("the media preprocessor at %s is gone", connection.address)
        self._engine.preprocessors.lost(connection)

    async def received(self, connection: Connection, message: Message) -> None:
        if isinstance(message, (Prepared, RequestError)):
            self._engine.preprocessors.receive(message)


def _check_deadline(request: GenerationRequest, began: float) -> None:
    """Raise `Unavailable` when the deadline has passed before the submission."""
    if request.deadline_ms and (time.monotonic() - began) * 1000 >= request.deadline_ms:
        raise Unavailable(
            "The request's deadline passed before it could be queued. Allow it more time.",
            code="queue_timeout",
            retry_after=1,
        )


def _no_tokenizer() -> Unavailable:
    return Unavailable("No tokenizer is connected. Try again later.", retry_after=2)


def _timed_out() -> BatonError:
    return ServerFault(
        "The request took longer than this server allows. Ask for fewer tokens.",
        code="request_timeout",
        status=504,
    )
