"""Child process that parses large request bodies; see `baton.process.sandbox`.

A request is a body, its answer a `ParsedBody` in MessagePack.
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.errors import InvalidRequest
from baton.process.sandbox import Handler, limit_memory, main
from baton_gateway.http.body import parse

MEMORY = 512 * 1024**2
"""Address space in bytes, on top of the libraries."""
_BIG_INTEGER = 1


class ParsedBody(msgspec.Struct, frozen=True, array_like=True):
    """A JSON object, or the reason for refusing it."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    """The object in MessagePack; nil when it is refused."""
    error: str = ""
    code: str | None = None
    param: str | None = None

    def object(self) -> dict[str, Any]:
        """Return the object. Raises `InvalidRequest`."""
        if self.error:
            raise InvalidRequest(self.error, code=self.code, param=self.param)
        parsed: dict[str, Any] = msgspec.msgpack.decode(self.value, ext_hook=_integer)
        return parsed


def pack(value: dict[str, Any]) -> bytes:
    """Encode an object in MessagePack, with integers of any size."""
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        return msgspec.msgpack.encode(_wrap(value))


def _wrap(value: Any) -> Any:
    """Replace integers that MessagePack lacks. The nesting of a parsed body is limited."""
    if isinstance(value, dict):
        return {key: _wrap(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_wrap(child) for child in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(_BIG_INTEGER, str(value).encode())
    return value


def _integer(code: int, data: memoryview) -> int:
    assert code == _BIG_INTEGER
    return int(bytes(data))


def parsed(body: bytes) -> ParsedBody:
    """Parse one body."""
    try:
        return ParsedBody(msgspec.Raw(pack(parse(body))))
    except InvalidRequest as error:
        message = error.message.encode("utf-8", "backslashreplace").decode()
        return ParsedBody(error=message, code=error.code, param=error.param)


def build(setup: bytes) -> Handler:
    """Return the handler."""
    limit_memory(MEMORY)
    return lambda body: msgspec.msgpack.encode(parsed(body))


if __name__ == "__main__":
    main(build)
