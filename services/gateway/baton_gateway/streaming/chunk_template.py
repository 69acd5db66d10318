"""JSON chunk that is encoded once and filled with new text for each event."""

from __future__ import annotations

from array import array

import msgspec

_encode = msgspec.json.Encoder().encode
_IDS = b'"token_ids":['


class ChunkTemplate:
    """Encoded object in which only one string field and, if present, `token_ids` vary.

    The field is found by its quoted name, which cannot occur inside an encoded string: quotation
    marks are escaped there.
    """

    __slots__ = ("_head", "_ids", "_tail")

    def __init__(self, payload: bytes, field: str) -> None:
        """Split `payload`, msgspec's encoding of the object with `field` and `token_ids` empty."""
        head, name, tail = payload.partition(b'"%b":""' % field.encode())
        assert name, f"there is no empty {field} in {payload!r}"
        self._head = head + name[:-2]
        ids, mark, end = tail.partition(_IDS)
        self._ids = ids + mark if mark else b""
        self._tail = end if mark else tail

    def fill(self, text: str, tokens: array[int]) -> bytes:
        """Return the encoded object with this text and these ids."""
        if not self._ids:
            return self._head + _encode(text) + self._tail
        ids = b"%d" % tokens[0] if len(tokens) == 1 else ",".join(map(str, tokens)).encode()
        return b"".join((self._head, _encode(text), self._ids, ids, self._tail))
