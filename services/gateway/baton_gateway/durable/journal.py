"""Journal interface and record formats for durable streams.

A stream is stored as its record (the request) and its parts: the deltas in the order of their
events. The events are a pure function of both, and any gateway can continue the stream from the
token log in the parts.

To continue a stream, a gateway claims it, which begins a new epoch. Parts of older epochs are
rejected, so two gateways never write one stream, even during a network partition.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Protocol

import msgspec

from baton.errors import BatonError, Unavailable
from baton.output_parsing import Start
from baton.protocol.token_columns import pack, unpack
from baton_gateway.config import Config
from baton_gateway.durable import JOURNALS
from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.pieces import Pieces


class StreamRecord(msgspec.Struct, frozen=True):
    """A streamed request, stored so that any gateway can continue its response."""

    id: str
    route: str
    """Name of the API, as registered in the gateway's streaming routes."""
    body: bytes
    """The request's JSON as sent by the client."""
    created: int
    """Unix time in seconds, as in the response."""
    model: str
    owner: str
    """Tenant that may read the stream; empty when no key is needed."""
    tenant: str
    """Billing tenant."""
    seed: int
    prompts: tuple[bytes, ...]
    """int32 ids of each prompt."""
    starts: tuple[Start, ...] = ()
    """Per prompt, where its output begins."""
    adapter: bytes = b""
    """Digest of the adapter that was applied to the model; empty for none."""
    sampling_defaults: dict[str, int | float] = {}
    """Sampling defaults of the model for fields that the body does not set."""


class _Part(msgspec.Struct, frozen=True, array_like=True):
    """Stored form of an `OutputDelta`."""

    choice: int
    text: str
    tokens: bytes
    ends: bytes
    logprobs: tuple[TokenLogprob, ...]
    reason: str | None
    stop: str | int | None
    cached: int
    pieces: Pieces
    reasoning_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


_decoder = msgspec.msgpack.Decoder(_Part)
_encode = msgspec.msgpack.Encoder().encode


def encode(delta: OutputDelta) -> bytes:
    """Encode a delta as a part."""
    return _encode(
        _Part(
            delta.choice,
            delta.text,
            pack(delta.tokens),
            pack(delta.ends, "I"),
            delta.logprobs,
            delta.reason,
            delta.stop,
            delta.cached,
            delta.pieces,
            delta.reasoning_tokens,
            delta.prompt_logprobs,
        )
    )


def decode(part: bytes) -> OutputDelta:
    """Decode a part; the inverse of `encode`."""
    record = _decoder.decode(part)
    tokens: array[int] = unpack(record.tokens)
    return OutputDelta(
        choice=record.choice,
        text=record.text,
        tokens=tokens,
        ends=tuple(unpack(record.ends, "I")),
        logprobs=record.logprobs,
        reason=record.reason,
        stop=record.stop,
        cached=record.cached,
        pieces=record.pieces,
        reasoning_tokens=record.reasoning_tokens,
        prompt_logprobs=record.prompt_logprobs,
    )


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream as claimed from the journal."""

    record: StreamRecord
    parts: tuple[bytes, ...]
    done: bool
    """True if no more parts follow."""
    epoch: int
    """The new epoch, held by the caller."""


class StreamFenced(BatonError):
    """Another gateway has claimed the stream or it has expired; this one must stop writing."""

    status = 409
    code = "stream_moved"

    def __init__(self) -> None:
        super().__init__("This stream is continued elsewhere. Resume it at /v1/streams/{id}.")


class StreamExists(BatonError):
    """A stream of that name exists already: another gateway was faster."""

    status = 409
    code = "stream_exists"

    def __init__(self) -> None:
        super().__init__("This stream exists already.")


def unavailable() -> Unavailable:
    """Error for a journal that is unavailable."""
    return Unavailable(
        "The journal of streams does not answer. Try again later, or without X-Stream-Durable and "
        "Idempotency-Key.",
        code="journal_unavailable",
        retry_after=2,
    )


def full() -> Unavailable:
    """Error for a journal that is full."""
    return Unavailable(
        "Too many durable streams are kept. Try again later, or without X-Stream-Durable and "
        "Idempotency-Key.",
        code="journal_full",
        retry_after=30,
    )


class Journal(Protocol):
    """Opens on first use. Every method but `close` raises `Unavailable` when the journal is
    unavailable.

    Parts of one stream must be appended one after the other; several streams may share a write.
    """

    @property
    def problem(self) -> str:
        """Problem to report to the operator; empty if there is none."""

    async def create(self, ticket: StreamRecord) -> int:
        """Create a stream. Returns its first epoch. Raises `StreamExists`."""

    async def append(self, name: str, epoch: int, part: bytes, *, done: bool) -> None:
        """Append a part, durable once this returns. Raises `StreamFenced`."""

    async def claim(self, name: str, owner: str) -> StoredStream | None:
        """Claim a stream under a new epoch. None when `owner` has no stream of that name."""

    async def prune(self) -> None:
        """Delete expired streams."""

    async def close(self) -> None:
        """Close the file or connection; stored streams are kept."""


def open_journal(config: Config) -> Journal:
    """Open the journal that the settings select."""
    name = config.journal or ("redis" if config.redis_url else "sqlite")
    journal: Journal = JOURNALS.load(name)(config)
    return journal
