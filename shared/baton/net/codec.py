"""MessagePack frames of a message: `[envelope, body]`, with size and version checks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from operator import or_
from typing import Any

import msgspec

from baton.errors import WireError
from baton.protocol import PROTOCOL, Envelope, Message

MAX_FRAME = 64 * 1024 * 1024
"""Maximum frame size in bytes; the socket rejects larger frames unread."""

_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_DEFAULT = _encoder.encode(Envelope())


def encode(message: Message, envelope: Envelope | None = None) -> list[bytes]:
    """Encode a message as its two frames."""
    head = _DEFAULT if envelope is None else _encoder.encode(envelope)
    return [head, _encoder.encode(message)]


@cache
def _decoder(types: tuple[type[Message], ...]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(reduce(or_, types))


def decode(frames: Sequence[bytes], types: tuple[type[Message], ...]) -> tuple[Envelope, Message]:
    """Decode frames into one of `types`. Raises only `WireError`, for any invalid input."""
    if len(frames) != 2:
        raise WireError(f"expected 2 frames, got {len(frames)}")
    try:
        envelope = _envelopes.decode(frames[0])
        if envelope.version != PROTOCOL:
            raise WireError(f"peer speaks protocol {envelope.version}, this side {PROTOCOL}")
        message: Message = _decoder(types).decode(frames[1])
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise WireError(f"not a message of this link: {error}") from error
    return envelope, message
