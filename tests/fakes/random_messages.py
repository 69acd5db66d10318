"""Messages that are well-formed and otherwise anything at all, for fuzzing a service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from baton.net.codec import decode, encode
from baton.net.sockets import Received
from baton.net.topology import Link
from baton.protocol import Envelope, Message
from baton.protocol.token_columns import pack

_NUMBERS = st.one_of(
    st.integers(0, 4), st.sampled_from([-1, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, -(2**63)])
)
_FLOATS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e308, float("inf"), float("nan")])
_COLUMNS = st.one_of(
    st.lists(st.integers(0, 4), max_size=5).map(lambda column: pack(column, "I")),
    st.lists(st.integers(-2, 300), max_size=5).map(pack),
    st.binary(max_size=12),
)
_WORDS = st.one_of(st.sampled_from(["", "a", "b", "stop", "{}", "[]"]), st.text(max_size=8))


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of one annotation of the protocol."""
    plain = {int: _NUMBERS, float: _FLOATS, bytes: _COLUMNS, str: _WORDS, bool: st.booleans()}
    if kind in plain:
        return plain[kind]
    if kind is NoneType:
        return st.none()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return of_struct(kind)
    return _of_generic(get_origin(kind), get_args(kind))


def _of_generic(origin: Any, parts: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (Union, UnionType):
        return st.one_of(*map(of_type, parts))
    if origin is dict:
        return st.dictionaries(of_type(parts[0]), of_type(parts[1]), max_size=3)
    if origin is tuple and parts[-1] is Ellipsis:
        return st.lists(of_type(parts[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, parts))
    raise TypeError(f"the protocol uses {origin}: say here what its values are")


def of_struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Values of a struct: each field is left at its default or is anything of its type."""
    required: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for known in msgspec.structs.fields(kind):
        has_default = (
            known.default is not msgspec.NODEFAULT or known.default_factory is not msgspec.NODEFAULT
        )
        (optional if has_default else required)[known.name] = of_type(known.type)
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: kind(**given))


def requests(link: Link) -> st.SearchStrategy[Message]:
    """Anything that a client of the link may send, and that its server's decoder lets through."""
    return st.one_of(*map(of_struct, link.requests)).filter(lambda m: _passes(link, m))


def _passes(link: Link, message: Message) -> bool:
    try:
        frames = encode(message)
    except (OverflowError, UnicodeEncodeError):  # No peer could send it either.
        return False
    decode(frames, link.requests)
    return True


@dataclass
class Inbox:
    """Stands for `baton.net.sockets.Server`: hands out what a test puts in, keeps what comes
    back."""

    waiting: list[Received] = field(default_factory=list)
    sent: list[tuple[bytes, Message]] = field(default_factory=list)
    dropped: int = 0

    def put(self, peer: bytes, message: Message, envelope: Envelope | None = None) -> None:
        """Let a message arrive."""
        self.waiting.append(Received(peer, envelope or Envelope(), message))

    def drain(self, limit: int = 1000) -> Iterator[Received]:
        """What has arrived."""
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        yield from taken

    def send(self, peer: bytes, message: Message, envelope: Envelope | None = None) -> bool:
        """Every peer can be reached, and what goes out fits on the wire."""
        encode(message, envelope)
        self.sent.append((peer, message))
        return True
