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
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from baton import __version__
from baton.errors import BatonError, ServerFault, Unavailable
from baton.logs import logger
from baton.net.discovery import Directory
from baton.net.handshake import BEAT_SECONDS, incarnation
from baton.net.topology import FRONTEND, MEDIA, TOKENIZE
from baton.process.lifecycle import default_name
from baton.protocol import Hello, Stats
from baton.telemetry import start, traceparent
from baton_gateway.adapter_resolver import AdapterResolver
from baton_gateway.beam_runner import BeamRunner
from baton_gateway.catalogue import ModelInfo
from baton_gateway.clients.connection import Connect, Pool, wait_until
from baton_gateway.clients.detokenizer import DetokenizerClient
from baton_gateway.clients.fleet_view import FleetView
from baton_gateway.clients.listeners import MediaListener, TokenizerListener
from baton_gateway.clients.mm_preprocess import MediaClient
from baton_gateway.clients.pixel_lease import PixelLease
from baton_gateway.clients.pixel_sharing import PixelSharing
from baton_gateway.clients.scheduler import SchedulerClient
from baton_gateway.clients.time_estimate import TimeEstimate, estimate
from baton_gateway.clients.tokenizer import TokenizerClient
from baton_gateway.config import Config, media_adapters
from baton_gateway.gateway_status import GatewayStatus
from baton_gateway.generation.admission import (
    check_adapter,
    check_allowed_ids,
    check_beams,
    check_ids,
    check_task,
    check_total,
)
from baton_gateway.generation.media_adapters import with_media_adapter
from baton_gateway.generation.output import Event, OutputDelta, Started
from baton_gateway.generation.output_queue import OutputQueue, OutputSink
from baton_gateway.generation.request import (
    EncodedPrompt,
    GenerationRequest,
    PreparedRequest,
)
from baton_gateway.generation.sequence import Sequence
from baton_gateway.generation.sequence_builder import SequenceBuilder
from baton_gateway.generation.thinking import check_budget
from baton_gateway.generation.tool_call_grammar import check_calls, with_call_grammar
from baton_gateway.http.disconnect import cancel_tasks
from baton_gateway.http.write_batch import WriteBatch
from baton_gateway.model_administration import ModelAdministration
from baton_gateway.observability.metrics import Metrics, SystemCollector, Timing
from baton_gateway.observability.timeline_store import TimelineStore
from baton_gateway.observability.vllm_metrics import vllm_text
from baton_gateway.request_encoder import RequestEncoder
from baton_gateway.served_models import ServedModels
from baton_gateway.structured_output.validator import GrammarValidator

_SETTLE_SECONDS = 5.0
_REFRESH_SECONDS = 1.0
"""Interval in seconds of directory lookups."""

log = logger(__name__)


class Engine:
    """Life cycle: `start` once inside the event loop, `generate` many times, `close` at the end."""

    def __init__(self, config: Config, directory: Directory, connect: Connect) -> None:
        self.config = config
        self.metrics = Metrics()
        self.timelines = TimelineStore(config.explained_requests, self.metrics.observe_phases)
        hello = Hello("gateway", default_name("gateway"), incarnation(), __version__)
        self._directory = directory
        self._fleet = FleetView(config.worker_hang_seconds)
        SystemCollector(self.metrics, lambda: self._fleet.stats)
        self.write_batch = WriteBatch()
        """Coalesces the direct writes of all streams."""
        self._init_clients(hello, connect)
        self._init_models()
        self.status = GatewayStatus(
            hello.name,
            config,
            self._fleet,
            self._scheduler,
            self.tokenizers,
            self.models.catalogue,
        )
        self._media_adapters = media_adapters(config.default_mm_loras)
        self._compiler = GrammarValidator(config.grammar_backend)
        self._handles = count(1)
        self._pixels = PixelSharing(config, directory)
        self._tasks: list[asyncio.Task[None]] = []

    def _init_clients(self, hello: Hello, connect: Connect) -> None:
        """Clients of the other services."""
        config = self.config
        listener = TokenizerListener(lambda: self.tokenizers, lambda: self.decoding)
        self._tokenize = Pool(TOKENIZE, hello, connect, listener)
        self._media = Pool(MEDIA, hello, connect, MediaListener(lambda: self.preprocessors))
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
        self._encoder = RequestEncoder(
            self.tokenizers, self.preprocessors, config.max_pooling_pixel_bytes
        )
        self.decoding = DetokenizerClient(
            self._scheduler.live, self._tokenize.pick, self._scheduler.abort, self.write_batch
        )

    def _init_models(self) -> None:
        """The models and adapters that are served, and their administration."""
        config = self.config
        self.models = ServedModels(
            self._fleet, self._scheduler, self.tokenizers, config.service_wait_seconds
        )
        self.administration = ModelAdministration(
            self._scheduler,
            self.models.catalogue,
            command_seconds=config.request_timeout_seconds,
            visible_seconds=config.service_wait_seconds,
        )
        self.adapters = AdapterResolver(
            config.lora_resolver_cache_dir,
            self.models.catalogue,
            self.administration.load_adapter,
        )

    async def start(self) -> None:
        """Connect to the services in the directory and follow its changes."""
        await self._follow()
        self._pixels.serve()
        self._tasks = [asyncio.create_task(self._refresh())]
        if self.config.shared_port:
            self._tasks.append(asyncio.create_task(self._guard()))

    async def settle(self) -> None:
        """With a shared port, wait until this gateway is healthy, at most `_SETTLE_SECONDS`."""
        if self.config.shared_port:
            await wait_until(lambda: not self.status.unhealthy_reasons(), _SETTLE_SECONDS)

    async def close(self) -> None:
        """Abort running sequences and close every connection."""
        await cancel_tasks(*self._tasks)
        await self._scheduler.abort(list(self._scheduler.live.values()))
        await self._compiler.close()
        for pool in (self._tokenize, self._media, self._scheduler.pool):
            await pool.close()
        self._pixels.close()

    async def generate(
        self, request: GenerationRequest, sink: OutputSink | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield `Started`, then the deltas of all choices as they arrive.

        While the caller waits for the next delta, `sink` may take it instead.

        Raises `BatonError`: before `Started` for an invalid request, afterwards for a failed run.
        """
        timeline, quota = request.sinks.timeline, request.identity.quota
        timeline.enter("admission")
        span = start("generate", request.identity.trace, {"baton.request": request.identity.id})
        request = _traced(request, traceparent(span) or request.identity.trace)
        arrival_time, timing = time.monotonic(), Timing(self.metrics)
        stream = OutputQueue(request.num_running, sink, partial(_record, timing))
        timer = asyncio.get_running_loop().call_later(
            self.config.request_timeout_seconds, stream.fail, _timed_out()
        )
        sequences: list[Sequence] = []
        pixels = PixelLease(self._pixels.store)
        self.status.num_requests += 1
        try:
            quota.acquire(request.num_running + request.num_hidden)
            sequences = await self._prepare(request, stream, arrival_time)
            started = _started(request, sequences)
            num_prompt_tokens = sum(map(len, started.prompts))
            if not request.prior_outputs:
                await quota.charge_prompt(num_prompt_tokens)
            await pixels.share(sequences)
            if request.sampling.beams is None:
                await self._submit(request, sequences)
            timing.started(num_prompt_tokens)
            yield started
            if request.sampling.beams is not None:
                await self._search(request, sequences, arrival_time)
            async for delta in stream:
                yield delta
        except BatonError as error:
            timeline.failed(error.code)
            raise
        finally:
            timer.cancel()
            await self._end(request, sequences, timing)
            pixels.release()
            span.end()

    async def _submit(self, request: GenerationRequest, sequences: list[Sequence]) -> None:
        running = [s for s in sequences if not s.ended]
        self.timelines.submitted(request.sinks.timeline, {s.handle: s.choice for s in running})
        await self._scheduler.submit(running)

    async def _end(
        self, request: GenerationRequest, sequences: list[Sequence], timing: Timing
    ) -> None:
        """Release what a request holds, whether it is complete or not."""
        request.sinks.timeline.enter("respond")
        self.status.num_requests -= 1
        timing.ended(complete=bool(sequences) and all(s.ended for s in sequences))
        await self._release(sequences)
        request.identity.quota.release()
        await request.identity.quota.charge_completion(_generated(request, sequences))

    @property
    def stats(self) -> Stats | None:
        """The scheduler's last report; None without one."""
        return self._fleet.stats

    def estimate(self, model: str, prompt_tokens: int, max_tokens: int) -> TimeEstimate:
        """Estimate the time of a request; see `baton_gateway.clients.time_estimate`."""
        return estimate(self._fleet.stats, model, prompt_tokens, max_tokens)

    def exported_metrics(self) -> bytes:
        """Return all metrics in Prometheus' text format, with vLLM's names where that is set."""
        text = self.metrics.text()
        if not self.config.vllm_metrics:
            return text
        return text + vllm_text(self.metrics.registry, self.models.catalogue.names)

    def snapshot(self) -> dict[str, Any]:
        """Return the system as a JSON object; see `GatewayStatus.snapshot`."""
        pools = {
            "tokenizer": self._tokenize,
            "mm-preprocess": self._media,
            "scheduler": self._scheduler.pool,
        }
        return self.status.snapshot(pools)

    async def _prepare(
        self, request: GenerationRequest, stream: OutputQueue, arrival_time: float
    ) -> list[Sequence]:
        """Prepare the sequences of a request for the scheduler. Raises `BatonError` for invalid
        requests."""
        request, encoded, model_info = await self.prepare(request)
        request.sinks.timeline.enter("admission")
        _check_deadline(request, arrival_time)
        builder = SequenceBuilder(request, model_info, stream, arrival_time, self._handle)
        return builder.build(encoded)

    async def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Check and encode a request, without running it. Raises `BatonError` for invalid ones."""
        request, model_info = await self._with_model(request)
        await self._try_grammar(request)
        request.sinks.timeline.enter("encode")
        encoded = await self._encode(request, model_info)
        total = sum(len(prompt.ids) for prompt in encoded)
        check_total(request, total, self.config.max_pooling_tokens)
        request = with_call_grammar(request, encoded, model_info, self.config.grammar_backend)
        await self._try_grammar(request)
        request = await self._encoder.thinking(request, encoded, model_info)
        request = await self._encoder.bad_words(request, model_info)
        check_allowed_ids(request, model_info)
        request = await self._encoder.prediction(request, model_info)
        return PreparedRequest(request, encoded, model_info)

    async def _with_model(self, request: GenerationRequest) -> tuple[GenerationRequest, ModelInfo]:
        """Find the model of a request, and check what needs no encoded prompt."""
        self.status.check()
        request = with_media_adapter(request, self._media_adapters, self.models.catalogue)
        await self.adapters.resolve(request.model)
        config = self.config
        # A resumed stream waits as long as an uninterrupted one would.
        timeout = config.request_timeout_seconds if request.resumed else config.service_wait_seconds
        model_info = check_task(request, await self.models.with_worker(request.model, timeout))
        check_adapter(request, model_info)
        check_ids(request, model_info)
        check_beams(request, model_info)
        check_calls(request, model_info)
        check_budget(request, model_info)
        return request, model_info

    async def _encode(
        self, request: GenerationRequest, model_info: ModelInfo
    ) -> list[EncodedPrompt]:
        """Encode every prompt. Counts towards the deadline."""
        try:
            async with asyncio.timeout(self.config.request_timeout_seconds):
                return await self._encoder.prompts(request, model_info)
        except TimeoutError as error:
            raise _timed_out() from error

    async def _try_grammar(self, request: GenerationRequest) -> None:
        """Compile the grammar. Counts towards the deadline."""
        if request.sampling.constraint is None:
            return
        request.sinks.timeline.enter("grammar")
        try:
            async with asyncio.timeout(self.config.request_timeout_seconds):
                await self._compiler.check(request.sampling.constraint)
        except TimeoutError as error:
            raise _timed_out() from error

    async def _search(
        self, request: GenerationRequest, sequences: list[Sequence], arrival_time: float
    ) -> None:
        """Fill the logs of all choices by beam search, then decode them."""
        timeline, beams = request.sinks.timeline, request.sampling.beams
        assert beams is not None
        timeline.submitted({s.handle: s.choice for s in sequences}, "beam_search")
        remaining = self.config.request_timeout_seconds + arrival_time - time.monotonic()
        try:
            async with asyncio.timeout(remaining):
                runner = BeamRunner(self._scheduler, self._handle)
                await runner.fill(sequences, request.sampling.n, beams)
        except TimeoutError as error:
            raise _timed_out() from error
        timeline.enter("detokenise")
        self._scheduler.live.update({s.handle: s for s in sequences})
        await self.decoding.add(sequences)

    def _handle(self) -> int:
        while (handle := next(self._handles) & 0xFFFFFFFF) in self._scheduler.live:
            pass
        return handle

    async def _release(self, sequences: list[Sequence]) -> None:
        """Stop running sequences and drop the state of all."""
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
            if self.status.partitioned:
                self._scheduler.leave()


def _record(timing: Timing, delta: OutputDelta) -> None:
    if delta.vector is None:
        timing.tokens(delta.choice, len(delta.tokens))
    if delta.reason is not None:
        timing.finished(delta.reason)


def _started(request: GenerationRequest, sequences: list[Sequence]) -> Started:
    prompts = sequences[:: request.sampling.n]  # The first choice of each.
    return Started(
        tuple(first.prompt for first in prompts),
        tuple(first.start for first in prompts),
        sequences[0].prediction,
        sequences[0].adapter,
    )


def _traced(request: GenerationRequest, trace: str) -> GenerationRequest:
    """Return the request with this gateway's span as its trace parent."""
    return replace(request, identity=replace(request.identity, trace=trace))


def _generated(request: GenerationRequest, sequences: list[Sequence]) -> int:
    """Number of generated tokens: for beam search, those of all beams."""
    beams, n = request.sampling.beams, request.sampling.n
    if beams is None:
        return sum(len(s.log) - s.inherited for s in sequences)
    searches = (sequences[at : at + n] for at in range(0, len(sequences), n))
    return max(n, beams.width) * sum(max(len(s.log) for s in search) for search in searches)


def _check_deadline(request: GenerationRequest, arrival_time: float) -> None:
    """Raise `Unavailable` when the deadline has passed before the submission."""
    if (
        request.limits.deadline_ms
        and (time.monotonic() - arrival_time) * 1000 >= request.limits.deadline_ms
    ):
        raise Unavailable(
            "The request's deadline passed before it could be queued. Allow it more time.",
            code="queue_timeout",
            retry_after=1,
        )


def _timed_out() -> BatonError:
    return ServerFault(
        "The request took longer than this server allows. Ask for fewer tokens.",
        code="request_timeout",
        status=504,
    )
