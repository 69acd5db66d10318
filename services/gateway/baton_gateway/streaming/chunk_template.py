"""A JSON object that is written again and again with another text: encoded once, filled in."""

from __future__ import annotations

from array import array

import msgspec

_encode = msgspec.json.Encoder().encode
_IDS = b'"token_ids":['


class ChunkTemplate:
    """An object in which nothing varies but one string and, where it has them, `token_ids`.

    A field's name cannot stand inside of an encoded string: its quotation marks would be escaped.
    """

    __slots__ = ("_head", "_ids", "_tail")

    def __init__(self, payload: bytes, field: str) -> None:
        """Made from an object as msgspec writes it, in which `field` and the ids are empty."""
        head, name, tail = payload.partition(b'"%b":""' % field.encode())
        assert name, f"there is no empty {field} in {payload!r}"
        self._head = head + name[:-2]
        ids, mark, rest = tail.partition(_IDS)
        self._ids = ids + mark if mark else b""
        self._tail = rest if mark else tail

    def fill(self, text: str, tokens: array[int]) -> bytes:
        """The object with this text and these ids, as if it were encoded anew."""
        if not self._ids:
            return self._head + _encode(text) + self._tail
        ids = b"%d" % tokens[0] if len(tokens) == 1 else ",".join(map(str, tokens)).encode()
        return b"".join((self._head, _encode(text), self._ids, ids, self._tail))
