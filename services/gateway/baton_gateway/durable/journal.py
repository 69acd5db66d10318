"""What a journal keeps of a durable stream, and what it promises.

A stream is kept as its ticket, which says what was asked, and its parts: the deltas in the order in
which they became events. Both together are the stream: its events are a pure function of them, and
whoever has them can continue it from the token log that the parts contain.

Who continues a stream takes it, which begins a new epoch. A part of an older epoch is refused: two
gateways never write one stream, whatever the network between them does.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from baton.errors import BatonError, Unavailable
from baton.protocol.token_columns import pack, unpack
from baton_gateway.config import Config
from baton_gateway.durable import JOURNALS
from baton_gateway.generation.output import OutputDelta, TokenLogprob

Route = Literal["chat", "completions"]


class StreamRecord(msgspec.Struct, frozen=True):
    """What was asked, so that the same answer can be continued anywhere."""

    id: str
    route: Route
    body: bytes
    """The request's JSON, as the client sent it."""
    created: int
    """Unix time, as the answer shows it."""
    model: str
    owner: str
    """Tenant that may read it; empty where no key is needed."""
    tenant: str
    """Who pays."""
    seed: int
    prompts: tuple[bytes, ...]
    """int32 ids of every prompt."""


class _Part(msgspec.Struct, frozen=True, array_like=True):
    """A `OutputDelta` as it is kept."""

    choice: int
    text: str
    tokens: bytes
    ends: bytes
    logprobs: tuple[TokenLogprob, ...]
    reason: str | None
    stop: str | int | None
    cached: int


_decoder = msgspec.msgpack.Decoder(_Part)
_encode = msgspec.msgpack.Encoder().encode


def encode(delta: OutputDelta) -> bytes:
    """A delta as a part. Log-probabilities of prompts are never streamed and are not kept."""
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
        )
    )


def decode(part: bytes) -> OutputDelta:
    """The inverse of `encode`."""
    found = _decoder.decode(part)
    tokens: array[int] = unpack(found.tokens)
    return OutputDelta(
        choice=found.choice,
        text=found.text,
        tokens=tokens,
        ends=tuple(unpack(found.ends, "I")),
        logprobs=found.logprobs,
        reason=found.reason,
        stop=found.stop,
        cached=found.cached,
    )


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream as it was found."""

    record: StreamRecord
    parts: tuple[bytes, ...]
    done: bool
    """Nothing follows the parts."""
    epoch: int
    """Of the caller, from now on."""


class StreamFenced(BatonError):
    """Another gateway has taken the stream, or its time is over: it must not be written here."""

    status = 409
    code = "stream_moved"

    def __init__(self) -> None:
        super().__init__("This stream is continued elsewhere. Resume it at /v1/streams/{id}.")


def lost() -> Unavailable:
    """The error of a journal that cannot be used."""
    return Unavailable(
        "The journal of streams does not answer. Try again later, or without X-Stream-Durable.",
        code="journal_unavailable",
        retry_after=2,
    )


def full() -> Unavailable:
    """The error of a journal that holds all it may."""
    return Unavailable(
        "Too many durable streams are kept. Try again later, or without X-Stream-Durable.",
        code="journal_full",
        retry_after=30,
    )


class Journal(Protocol):
    """Opens at its first use. Every method but `close` raises `Unavailable` when it cannot be used.

    Parts of one stream are appended one after the other; different streams may share a write.
    """

    async def create(self, ticket: StreamRecord) -> int:
        """Begin a stream. Returns its first epoch."""

    async def append(self, name: str, epoch: int, part: bytes, *, done: bool) -> None:
        """Add a part; once this returns, it outlives the process. Raises `StreamFenced`."""

    async def claim(self, name: str, owner: str) -> StoredStream | None:
        """A stream to continue, under a new epoch. None when `owner` has no stream of that name."""

    async def prune(self) -> None:
        """Forget what is too old."""

    async def close(self) -> None:
        """Let go of the file or the connection; it stays as it is."""


def open_journal(config: Config) -> Journal:
    """The journal that the settings name."""
    name = config.journal or ("redis" if config.redis_url else "sqlite")
    journal: Journal = JOURNALS.load(name)(config)
    return journal
