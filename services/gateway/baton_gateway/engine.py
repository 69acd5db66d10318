"""The order of events for one request: encode, admit, submit, collect, clean up.

    generate --EncodeChat--> tokenizer --Encoded--> admission --Submit--> scheduler
    generate --Prepare--> mm-preprocess --Prepared--> admission
    scheduler --Tokens--> token log --Decode--> tokenizer --Text--> stream --> generate's caller

One task per connection receives; all state belongs to the event loop and needs no lock. A caller
that stops iterating, for whatever reason, has its sequences aborted at once.
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
    Detokenized,
    Encoded,
    Hello,
    MediaItem,
    Message,
    Pieces,
    Prepared,
    Refused,
    Text,
)
from baton.telemetry import start, traceparent
from baton_gateway.beam_runner import Prober
from baton_gateway.clients.connection import (
    Connect,
    Connection,
    Pool,
    until,
)
from baton_gateway.clients.detokenizer import Decoding
from baton_gateway.clients.fleet_view import Fleet, snapshot
from baton_gateway.clients.mm_preprocess import Preprocessors
from baton_gateway.clients.scheduler import Scheduler
from baton_gateway.clients.tokenizer import Tokenizers
from baton_gateway.config import Config
from baton_gateway.generation.admission import (
    Facts,
    check_beams,
    check_ids,
    check_total,
    fit,
    sampling_of,
    suited,
    too_long,
)
from baton_gateway.generation.bad_words import encode as encode_words
from baton_gateway.generation.beam_search import Search
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import Delta, Event, Started
from baton_gateway.generation.output_queue import Stream
from baton_gateway.generation.request import (
    Beams,
    Encoding,
    Generation,
    Prompt,
)
from baton_gateway.generation.sequence import Sequence
from baton_gateway.http.disconnect import stop
from baton_gateway.http.errors import CutOff
from baton_gateway.http.write_batch import Burst
from baton_gateway.observability.latency import Ledger
from baton_gateway.observability.metrics import Metrics, SystemCollector, Timing
from baton_gateway.structured_output.validator import Compiler

_ENCODED_AT_ONCE = 16
"""Prompts of one request that wait for tokenizers together, so that none is idle meanwhile."""
_SETTLE_SECONDS = 5.0
_REFRESH_SECONDS = 1.0
"""How often the directory is asked who is there."""

log = logger(__name__)


class Engine:
    """Life cycle: `start` once inside the event loop, `generate` many times, `close` at the end."""

    def __init__(self, config: Config, directory: Directory, connect: Connect) -> None:
        self.config = config
        self.metrics = Metrics()
        self.draining = False
        """Set when this process has been asked to stop: new work is refused."""
        self.ledger = Ledger(config.explained_requests)
        hello = Hello("gateway", default_name("gateway"), incarnation(), __version__)
        self._name = hello.name
        self._directory = directory
        self._fleet = Fleet(config.hang_seconds)
        SystemCollector(self.metrics, lambda: self._fleet.stats)
        self._tokenize = Pool(TOKENIZE, hello, connect, _TokenizerListener(self))
        self._media = Pool(MEDIA, hello, connect, _MediaListener(self))
        self._scheduler = Scheduler(
            hello,
            connect,
            self._fleet,
            self.ledger,
            lambda s: self.decoding.feed(s),
            config.resume_seconds,
        )
        self.tokenizers = Tokenizers(self._tokenize, config.patience)
        self.preprocessors = Preprocessors(self._media, config.patience)
        self._burst = Burst()
        self.decoding = Decoding(
            self._scheduler.live, self._tokenize.pick, self._scheduler.abort, self._burst
        )
        self._compiler = Compiler(config.grammar)
        self._handles = count(1)
        self._running = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect to whoever the directory lists, and go on following it."""
        await self._follow()
        self._tasks = [asyncio.create_task(self._refresh())]
        if self.config.shared_port:
            self._tasks.append(asyncio.create_task(self._guard()))

    async def settle(self) -> None:
        """Where others serve on the same port, wait until this gateway can, too, or it is time to
        say why it cannot."""
        if self.config.shared_port:
            await until(lambda: not self.complaints(), _SETTLE_SECONDS)

    async def close(self) -> None:
        """Abort what runs and close every connection."""
        await stop(*self._tasks)
        await self._scheduler.abort(list(self._scheduler.live.values()))
        await self._compiler.close()
        for pool in (self._tokenize, self._media, self._scheduler.pool):
            await pool.close()

    async def generate(self, request: Generation) -> AsyncGenerator[Event, None]:
        """Yield `Started`, then the deltas of all choices as they come.

        Raises `BatonError`; before `Started` it concerns the request, after it the run.
        """
        account = request.account
        account.enter("admission")
        span = start("generate", request.trace, {"baton.request": request.id})
        trace = traceparent(span) or request.trace
        began, timing = time.monotonic(), Timing(self.metrics)
        request.outlet.burst = self._burst
        running = len(request.prompts) * request.n - sum(past.ended for past in request.past)

        def write(delta: Delta) -> bool:
            written = request.outlet.write(delta)
            if written:
                timing.tokens(delta.choice, len(delta.tokens))
            return written

        stream = Stream(running, write)
        timer = asyncio.get_running_loop().call_later(
            self.config.request_timeout, stream.fail, _timed_out()
        )
        sequences: list[Sequence] = []
        self._running += 1
        try:
            request.budget.enter(running)
            sequences = await self._prepare(replace(request, trace=trace), stream, began)
            prompts = tuple(s.prompt for s in sequences[:: request.n])
            if not request.past:
                await request.budget.spend(sum(map(len, prompts)))
            if request.beams is None:
                choices = {s.handle: s.choice for s in sequences if not s.ended}
                self.ledger.submitted(account, choices)
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
            request.budget.leave()
            await request.budget.settle(sum(len(s.log) - s.inherited for s in sequences))
            span.end()

    async def admit(self, patience: float | None = None) -> Facts:
        """The served model, once somebody can run it. Raises `Unavailable` when nobody can within
        `patience` seconds, by default those of the settings."""
        patience = self.config.patience if patience is None else patience
        if self.draining:
            raise Unavailable(
                "This server is shutting down. Send the request again.",
                code="shutting_down",
                retry_after=1,
            )
        if self.cut_off:
            raise CutOff
        if self._running > self.config.max_concurrent_requests:
            raise Unavailable("Too many requests are in flight. Try again later.", retry_after=1)
        able = await until(lambda: self._fleet.able(time.monotonic()), patience)
        if not self._scheduler.pool.ready():
            raise Unavailable("The scheduler is not connected. Try again later.", retry_after=2)
        if not able:
            raise Unavailable(
                "No worker is ready for this model. Try again later.",
                code="no_worker",
                retry_after=2,
            )
        return await self.facts(patience)

    async def facts(self, patience: float | None = None) -> Facts:
        """The served model. Waits a moment for a tokenizer that is away; `Unavailable` then."""
        patience = self.config.patience if patience is None else patience
        await until(lambda: self.tokenizers.info is not None, patience)
        info, stats = self.tokenizers.info, self._fleet.stats
        if info is None:
            raise Unavailable("No tokenizer is connected. Try again later.", retry_after=2)
        sizes = [info.vocab_size, *([stats.vocab_size] if stats and stats.vocab_size else [])]
        return Facts(
            model=(stats.model if stats else "") or info.model,
            max_length=stats.max_length if stats else 0,
            vocab_size=min(sizes),
            eos_ids=tuple(sorted({*info.eos_ids, *(stats.eos_ids if stats else ())})),
            media_ids=frozenset(info.media_ids),
            special_ids=frozenset(info.special_ids),
            pooling=stats.pooling if stats else None,
        )

    async def vocabulary(self) -> Vocabulary:
        """Names of tokens, for log-probabilities."""
        return Vocabulary(await self.tokenizers.pieces())

    async def reset_cache(self) -> int:
        """Empty the prefix cache. Returns how many pages it held. Raises `Unavailable`."""
        return await self._scheduler.reset_cache(max(1.0, self.config.patience))

    @property
    def cut_off(self) -> bool:
        """The scheduler says nothing to this gateway, and perhaps to others that share its port."""
        return self.config.shared_port and self._scheduler.pool.silent()

    def complaints(self) -> list[str]:
        """Why this gateway cannot serve; empty when it can."""
        if not self._scheduler.pool.ready() or self.cut_off:
            reasons = ["the scheduler does not answer"]
        else:
            reasons = self._fleet.complaints(time.monotonic())
        if self.tokenizers.info is None:
            reasons.append("no tokenizer answers")
        if self.draining:
            reasons.append("this gateway is draining")
        return reasons

    def snapshot(self) -> dict[str, Any]:
        """The system as one JSON object; see `baton_gateway.clients.fleet_view.snapshot`."""
        info, stats = self.tokenizers.info, self._fleet.stats
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
        return {
            "model": (stats.model if stats else "") or (info.model if info else ""),
            "max_length": stats.max_length if stats else 0,
            "task": stats.pooling.task if stats and stats.pooling else "generate",
            **snapshot(self._fleet, pools, me),
        }

    async def _prepare(self, request: Generation, stream: Stream, began: float) -> list[Sequence]:
        """Everything that precedes the scheduler. Raises `BatonError` for what may not run."""
        # A stream that goes on waits as long as one that had not been interrupted here.
        patience = self.config.resume_seconds if request.past else self.config.patience
        facts = suited(request, await self.admit(patience))
        check_ids(request, facts)
        check_beams(request, facts)
        await self._try_grammar(request)
        request.account.enter("encode")
        encoded = await self._encode(request, facts, request.trace)
        total = sum(len(one.ids) for one in encoded)
        check_total(request, total, self.config.max_pooled_tokens)
        request = await self._encode_words(request)
        request.account.enter("admission")
        _check_deadline(request, began)
        return self._sequences(request, encoded, facts, stream, began)

    async def _encode(self, request: Generation, facts: Facts, trace: str) -> list[Encoding]:
        """Every prompt as the scheduler is given it. The time for it is part of the time for the
        request."""
        try:
            async with asyncio.timeout(self.config.request_timeout):
                found: list[Encoding] = []
                for first in range(0, len(request.prompts), _ENCODED_AT_ONCE):
                    some = request.prompts[first : first + _ENCODED_AT_ONCE]
                    work = (self._encode_one(request, prompt, facts, trace) for prompt in some)
                    found += await asyncio.gather(*work)
                return found
        except TimeoutError as error:
            raise _timed_out() from error

    async def _encode_one(
        self, request: Generation, prompt: Prompt, facts: Facts, trace: str
    ) -> Encoding:
        if isinstance(prompt, tuple):
            return Encoding(array("i", prompt))
        if isinstance(prompt, MediaItem):
            return await self.preprocessors.encode(prompt, trace)
        try:
            ids, second = await self.tokenizers.encode_pair(prompt, facts.max_length, trace)
        except InvalidRequest as error:
            if request.pooling is None:
                raise
            raise InvalidRequest(error.message, code=error.code, param=request.param) from error
        if len(ids) > facts.max_length:
            raise too_long(request, len(ids), facts)
        return Encoding(ids, second)

    async def _try_grammar(self, request: Generation) -> None:
        """The time for it is part of the time for the request, as that for its prompts."""
        if request.constraint is None:
            return
        request.account.enter("grammar")
        try:
            async with asyncio.timeout(self.config.request_timeout):
                await self._compiler.check(request.constraint)
        except TimeoutError as error:
            raise _timed_out() from error

    async def _encode_words(self, request: Generation) -> Generation:
        if not request.bad_words:
            return request
        words = await encode_words(request.bad_words, self.tokenizers)
        return replace(request, sampling=structs.replace(request.sampling, bad_words=words))

    def _sequences(
        self,
        request: Generation,
        prompts: list[Encoding],
        facts: Facts,
        stream: Stream,
        began: float,
    ) -> list[Sequence]:
        # The longest text says nothing of images, which are all of one size.
        rooms = [0 if one.media else fit(request, one.ids, facts) for one in prompts]
        limit = request.deadline_ms / 1000
        sequences = [
            Sequence(
                handle=self._handle(),
                request=request.id,
                choice=number * request.n + choice,
                prompt=one.ids,
                sampling=sampling_of(request, choice, room, facts),
                stream=stream,
                priority=request.priority,
                tenant=request.tenant,
                salt=request.salt,
                notes=request.notes,
                stops=request.stops,
                stop_token_ids=request.sampling.stop_ids,
                include_stop=request.include_stop,
                skip_special=request.skip_special,
                trace=request.trace,
                deadline=began + limit if limit else None,
                account=request.account,
                pooling=request.pooling and structs.replace(request.pooling, second=one.second),
                media=one.media,
            )
            for number, (one, room) in enumerate(zip(prompts, rooms, strict=True))
            for choice in range(request.n)
        ]
        for sequence, past in zip(sequences, request.past, strict=False):
            sequence.follow(past)
        return sequences

    async def _search(
        self, request: Generation, beams: Beams, sequences: list[Sequence], began: float
    ) -> None:
        """Write the logs of all choices by beam search, and have them decoded."""
        firsts = sequences[:: request.n]
        request.account.submitted({s.handle: s.choice for s in sequences}, "beam_search")
        searches = [
            Search(beams, frozenset(s.sampling.stop_ids), s.sampling.max_tokens) for s in firsts
        ]
        try:
            async with asyncio.timeout(self.config.request_timeout + began - time.monotonic()):
                await Prober(self._scheduler, self._handle).run(searches, firsts)
        except TimeoutError as error:
            raise _timed_out() from error
        request.account.enter("detokenise")
        for search, first in zip(searches, range(0, len(sequences), request.n), strict=True):
            choices = sequences[first : first + request.n]
            for sequence, beam in zip(choices, search.best(request.n), strict=True):
                sequence.write(beam.tokens, beam.logprobs, beam.reason)
                self._scheduler.live[sequence.handle] = sequence
        await self.decoding.feed(sequences)

    def _handle(self) -> int:
        while (handle := next(self._handles) & 0xFFFFFFFF) in self._scheduler.live:
            pass
        return handle

    async def _release(self, sequences: list[Sequence]) -> None:
        """Nobody reads these any more: stop what still runs, forget everything."""
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
            if self.cut_off:
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
        if isinstance(message, Text):
            await self._engine.decoding.apply(message, connection)
        elif isinstance(message, (Encoded, Detokenized, Pieces, Refused)):
            self._engine.tokenizers.answer(message)


class _MediaListener:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def joined(self, connection: Connection) -> None:
        log.info("the media preprocessor at %s answers", connection.address)

    async def lost(self, connection: Connection) -> None:
        log.info("the media preprocessor at %s is gone", connection.address)
        self._engine.preprocessors.lost(connection)

    async def received(self, connection: Connection, message: Message) -> None:
        if isinstance(message, (Prepared, Refused)):
            self._engine.preprocessors.answer(message)


def _check_deadline(request: Generation, began: float) -> None:
    """Raise `Unavailable` when the deadline has passed before there is anything to run."""
    if request.deadline_ms and (time.monotonic() - began) * 1000 >= request.deadline_ms:
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
