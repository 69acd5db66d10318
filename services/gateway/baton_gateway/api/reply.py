"""Code common to chat and completions: sampling, request headers, whole and streamed responses."""

from __future__ import annotations

import re
import secrets
import time
from array import array
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from baton import __version__
from baton.errors import InvalidRequest
from baton.protocol import Sampling
from baton_gateway.catalogue import ModelInfo
from baton_gateway.config import Config
from baton_gateway.durable.journal import Route, StreamRecord
from baton_gateway.durable.streams import DurableStreams, ReplayCursor
from baton_gateway.engine import Engine
from baton_gateway.generation import logits_processors, processor_registry
from baton_gateway.generation.admission import no_model
from baton_gateway.generation.output import (
    Event,
    OutputDelta,
    Started,
    TokenLogprob,
)
from baton_gateway.generation.pieces import Piece
from baton_gateway.generation.request import (
    GenerationRequest,
    Prompt,
    RequestIdentity,
    RequestLimits,
    RequestSinks,
    SamplingOptions,
    TextOptions,
)
from baton_gateway.http.admission_headers import AdmissionHeaders
from baton_gateway.http.disconnect import cancel_on_disconnect
from baton_gateway.http.errors import invalid
from baton_gateway.http.middleware import (
    id_of,
    quota_of,
    tenant_of,
    timeline_of,
)
from baton_gateway.schemas.sampled_request import SampledRequest
from baton_gateway.streaming.sse import DirectPath, EventStream

FINGERPRINT = f"baton-{__version__}"
_GREEDY = 1e-5
"""Temperatures below this would overflow the division by it; they are treated as greedy."""

_LONGEST_MS = 86_400_000

_TRACE = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Head:
    """Fields that all parts of a response repeat."""

    id: str
    created: int
    model: str

    @classmethod
    def of(cls, request: Request, prefix: str, model: str) -> Head:
        """Create a head whose id shares its number with the request id."""
        return cls(f"{prefix}-{id_of(request)[4:]}", int(time.time()), model)

    def fields(self) -> dict[str, Any]:
        """Return the common fields of a response."""
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


def sampling(body: SampledRequest, config: Config, logprobs: int, prompt_logprobs: int) -> Sampling:
    """Return the client's sampling parameters; the engine fills in those that need the model."""
    greedy = body.temperature < _GREEDY or body.top_p == 0.0
    return Sampling(
        max_tokens=0,
        temperature=0.0 if greedy else body.temperature,
        top_p=body.top_p or 1.0,
        top_k=max(0, body.top_k),
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=body.logit_bias,
        min_tokens=body.min_tokens,
        stop_ids=body.stop_token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        typical_p=body.typical_p,
        allowed_ids=body.allowed_token_ids,
        grammar=body.constraint.grammar if body.constraint else None,
        processors=logits_processors.check(
            body.processors, processor_registry.names(config.logits_processors)
        ),
    )


def trace(request: Request) -> str:
    """Return the client's W3C traceparent; empty when absent or invalid."""
    header = request.headers.get("traceparent", "")
    return header if _TRACE.fullmatch(header) else ""


def deadline(request: Request) -> int:
    """Return the deadline in milliseconds: X-Deadline-Ms, else the setting.

    Raises `InvalidRequest` unless the header is a number from 1 ms to 24 h.
    """
    config: Config = request.app.state.config
    header = request.headers.get("x-deadline-ms")
    if header is None:
        return config.deadline_ms
    if not re.fullmatch("[0-9]{1,8}", header) or not 1 <= int(header) <= _LONGEST_MS:
        raise InvalidRequest(
            f"Invalid X-Deadline-Ms header: expected an integer from 1 to {_LONGEST_MS}.",
            code="invalid_value",
        )
    return int(header)


def tenant(request: Request, body: SampledRequest) -> str:
    """Return the billing tenant: the API key's or, without keys, the request's `user`."""
    return tenant_of(request) or body.user or ""


async def permitted(request: Request, model: str | None) -> ModelInfo:
    """Return the model of this name, None being the only one. Raises `NotFound` if there is none,
    or if the key does not permit it."""
    engine: Engine = request.app.state.engine
    facts = await engine.models.get(model)
    if not quota_of(request).key.permits(facts.name):
        raise no_model(facts.name)
    return facts


def seed(body: SampledRequest) -> int:
    """Return the client's seed as unsigned 64 bits, or a random one."""
    return secrets.randbits(63) if body.seed is None else body.seed & (2**64 - 1)


def requested(
    request: Request,
    body: SampledRequest,
    head: Head,
    prompts: tuple[Prompt, ...],
    how: Sampling,
    *,
    param: str,
    max_tokens: int | None,
    n: int,
) -> GenerationRequest:
    """Create the generation request; `param` is the field that contains the prompts."""
    return GenerationRequest(
        RequestIdentity(
            head.id,
            trace=trace(request),
            tenant=tenant(request, body),
            salt=(body.cache_salt or "").encode(),
            quota=quota_of(request),
        ),
        prompts,
        SamplingOptions(
            how,
            seed=seed(body),
            n=n,
            ignore_eos=body.ignore_eos,
            bad_words=body.bad_words,
            constraint=body.constraint,
            beams=body.beams,
        ),
        model=head.model,
        param=param,
        text=TextOptions(body.stop, body.include_stop_str_in_output, body.skip_special_tokens),
        limits=RequestLimits(max_tokens, deadline(request), body.priority),
        sinks=RequestSinks(
            admission_headers=AdmissionHeaders.of(request), timeline=timeline_of(request)
        ),
    )


def check_choices(body: SampledRequest, prompts: int, config: Config) -> None:
    """Raise `InvalidRequest` when prompts times n exceeds the limit per request."""
    if prompts * body.at_once <= config.max_choices:
        return
    if prompts == 1:
        raise invalid(
            "n",
            f"Invalid 'n': integer above maximum value. Expected a value <= {config.max_choices}, "
            f"but got {body.n} instead.",
            "integer_above_max_value",
        )
    raise invalid(
        "prompt",
        f"Invalid 'prompt': {prompts} prompts times {body.at_once} choices are more than "
        f"{config.max_choices}.",
        "array_above_max_length",
    )


@dataclass(slots=True)
class Choice:
    """A choice, collected from its deltas."""

    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    tokens: array[int] = field(default_factory=lambda: array("i"))
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    reason: str | None = None
    stop: str | int | None = None
    starts: list[int] = field(default_factory=list)
    """Per token, offset of its text."""
    cached: int = 0
    """Prompt tokens that came from the prefix cache."""
    vector: bytes | None = None
    """float32 vector, for pooling requests."""

    @property
    def content(self) -> str:
        """The text of the answer itself."""
        return "".join(piece.text for piece in self.pieces)

    @classmethod
    def of(cls, delta: OutputDelta, length: int) -> Choice:
        """Convert one delta, `length` characters into its choice's text."""
        part = cls()
        part.add(delta)
        part.starts = [length, *delta.ends][: len(delta.tokens)]
        return part

    def add(self, delta: OutputDelta) -> None:
        """Append a delta."""
        self.starts += [len(self.text), *delta.ends][: len(delta.tokens)]
        self.text += delta.text
        self.pieces += delta.pieces
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        self.reason, self.stop = delta.reason, delta.stop
        self.cached = delta.cached
        self.vector = delta.vector


Answer = tuple[Started, list[Choice]]


async def begin(events: AsyncGenerator[Event, None]) -> tuple[Started, OutputDelta]:
    """Wait for the first token. Errors before it still produce an HTTP status."""
    started = await anext(events)
    assert isinstance(started, Started)
    delta = await anext(events)
    assert isinstance(delta, OutputDelta)
    return started, delta


async def rest(
    first: OutputDelta, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[OutputDelta, None]:
    """Yield `first`, then the remaining deltas. Closing it closes `events`."""
    try:
        yield first
        async for delta in events:
            assert isinstance(delta, OutputDelta)
            yield delta
    finally:
        await events.aclose()


async def gather(engine: Engine, generation: GenerationRequest) -> Answer:
    """Collect the complete output."""
    events = engine.generate(generation)
    try:
        started, first = await begin(events)
        choices = [Choice() for _ in range(len(started.prompts) * generation.sampling.n)]
        async for delta in rest(first, events):
            choices[delta.choice].add(delta)
        return started, choices
    finally:
        await events.aclose()


async def respond(
    request: Request,
    body: SampledRequest,
    work: GenerationRequest,
    head: Head,
    route: Route,
    to: Streamer,
) -> Response:
    """Return the response, whole or streamed, with the admission headers."""
    headers = work.sinks.admission_headers
    if body.stream or durable(request, body):
        return headers.apply(await streamed(request, body, work, head, route, to))
    started, choices = await whole(request, work)
    return headers.apply(json(to.whole(started, choices)))


async def whole(request: Request, generation: GenerationRequest) -> Answer:
    """`gather` with cancellation on disconnect."""
    engine: Engine = request.app.state.engine
    return await cancel_on_disconnect(request.receive, gather(engine, generation))


async def opened(
    request: Request, generation: GenerationRequest
) -> tuple[Started, AsyncGenerator[OutputDelta, None]]:
    """Return a stream once its first token has arrived, with cancellation on disconnect."""
    engine: Engine = request.app.state.engine
    events = engine.generate(generation)
    try:
        started, first = await cancel_on_disconnect(request.receive, begin(events))
    except BaseException:
        await events.aclose()
        raise
    return started, rest(first, events)


class Transcript(Protocol):
    """Converts deltas to the payloads of one stream, deterministically.

    Life cycle: `opening` once, `add` for each delta in turn, `closing` once.
    """

    def opening(self) -> Iterable[bytes]:
        """Return the payloads before the first delta."""

    def add(self, delta: OutputDelta) -> bytes | None:
        """Return the payload of a delta; None when it needs no event."""

    def closing(self) -> Iterable[bytes]:
        """Return the payloads after the last delta."""


class Streamer(Protocol):
    """Converts choices to a response, or deltas to events."""

    def whole(self, started: Started, choices: list[Choice]) -> Any:
        """Return the complete response, to be encoded as JSON."""

    def transcript(self, started: Started) -> Transcript:
        """Return the transcript of the response."""


async def payloads(
    transcript: Transcript, deltas: AsyncGenerator[OutputDelta, None]
) -> AsyncGenerator[bytes, None]:
    """Yield all payloads of a stream. Closing it closes `deltas`."""
    try:
        for payload in transcript.opening():
            yield payload
        async for delta in deltas:
            part = transcript.add(delta)
            if part is not None:
                yield part
        for payload in transcript.closing():
            yield payload
    finally:
        await deltas.aclose()


def durable(request: Request, body: SampledRequest) -> bool:
    """Return whether the client requested a durable stream with X-Stream-Durable: 1.

    Raises `InvalidRequest` for a request without a stream, or one that cannot be resumed.
    """
    header = request.headers.get("x-stream-durable", "0")
    if header not in {"0", "1"}:
        raise InvalidRequest(
            "Invalid X-Stream-Durable header: expected 0 or 1.", code="invalid_value"
        )
    if header == "1" and not body.stream:
        raise InvalidRequest(
            "The X-Stream-Durable header needs 'stream' to be true.", code="invalid_value"
        )
    if header == "1" and body.beams is not None:
        raise InvalidRequest(
            "A beam search cannot be durable. Leave out the X-Stream-Durable header.",
            code="unsupported_value",
        )
    return header == "1"


async def streamed(
    request: Request,
    body: SampledRequest,
    generation: GenerationRequest,
    head: Head,
    route: Route,
    to: Streamer,
) -> Response:
    """Return the response as server-sent events, with a journal for durable streams."""
    lasting = durable(request, body)
    started, deltas = await opened(request, generation)
    transcript = to.transcript(started)
    if lasting:
        streams: DurableStreams = request.app.state.streams
        ticket = StreamRecord(
            id=head.id,
            route=route,
            body=request.state.body,
            created=head.created,
            model=head.model,
            owner=tenant_of(request),
            tenant=generation.identity.tenant,
            seed=generation.sampling.seed,
            prompts=tuple(prompt.column for prompt in started.prompts),
        )
        recording = await streams.record(ticket, deltas)
        return event_stream(request, head, payloads(transcript, recording.deltas(ReplayCursor())))
    shortcut = DirectPath(generation.sinks.direct, transcript.add)
    return event_stream(request, head, payloads(transcript, deltas), shortcut=shortcut)


def event_stream(
    request: Request,
    head: Head,
    payloads: AsyncGenerator[bytes, None],
    first: int = 0,
    shortcut: DirectPath | None = None,
) -> Response:
    """Return payloads as server-sent events, numbered under the response id."""
    config: Config = request.app.state.config
    return EventStream(
        head.id,
        payloads,
        keep_alive=config.keep_alive_seconds,
        stall=config.slow_client_seconds,
        first=first,
        shortcut=shortcut,
    )


def json(value: Any) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(value), media_type="application/json")
