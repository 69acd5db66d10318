"""Receives and parses request bodies without letting a large one delay other requests.

    client --parts--> BodyReader --small--> parse
                          |
                          +------ large --> child process (`body_sandbox`) --object-->

Bytes of unfinished bodies are counted over all connections. The beginning of each body is free:
small requests are received however many large ones there are.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from baton.errors import InvalidRequest, Unavailable
from baton.process.child_pool import ChildDied, ChildPool, ChildTimeout
from baton_gateway.config import Config
from baton_gateway.http.body import build, check_type, parse
from baton_gateway.http.body_sandbox import ParsedBody
from baton_gateway.http.disconnect import ClientDisconnected

INLINE_BYTES = 64 * 1024
"""Size up to which a body is parsed in the event loop, within milliseconds, and not counted."""
_MODULE = "baton_gateway.http.body_sandbox"
_CHILDREN = 2
_SECONDS = 5.0
"""Time limit for parsing one body, in seconds of processor time."""

_decoder = msgspec.msgpack.Decoder(ParsedBody)


M = TypeVar("M", bound=BaseModel)


async def read(request: Request, model: type[M]) -> M:
    """Receive, parse and validate the body as `model`.

    Raises `InvalidRequest` with a code and a field path, and the errors of `BodyReader`.
    """
    config: Config = request.app.state.config
    return build(await read_object(request), model, strict=config.strict_fields)


async def read_object(request: Request) -> dict[str, Any]:
    """Receive and parse the body, whose fields are not validated.

    Raises `InvalidRequest` if it is no JSON object, and the errors of `BodyReader`.
    """
    bodies: BodyReader = request.app.state.bodies
    check_type(request)
    request.state.body = await bodies.read(request)
    return await bodies.parse(request.state.body)


class BodyReader:
    """The bodies of one gateway. Life cycle: any number of `read` and `parse`, then `close`."""

    def __init__(self, config: Config) -> None:
        self._limit, self._total = config.max_body_bytes, config.max_unfinished_body_bytes
        self._children = ChildPool(_MODULE, b"", _CHILDREN, "Parsing of large bodies")
        self._unfinished = 0
        """Counted bytes of bodies that are being received."""

    async def close(self) -> None:
        """Stop the children."""
        await asyncio.to_thread(self._children.close)

    async def read(self, request: Request) -> bytes:
        """Receive a whole body.

        Raises:
            InvalidRequest: 413 as soon as it exceeds the limit.
            Unavailable: the unfinished bodies of all connections are too large.
            ClientDisconnected: the client has left before the end.
        """
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._limit:
            raise _too_large(self._limit)
        try:
            return await self._collect(request)
        except ClientDisconnect:
            raise ClientDisconnected from None

    async def _collect(self, request: Request) -> bytes:
        parts, size, counted = list[bytes](), 0, 0
        try:
            async for part in request.stream():
                size += len(part)
                if size > self._limit:
                    raise _too_large(self._limit)
                grown = max(0, size - INLINE_BYTES) - counted
                self._unfinished, counted = self._unfinished + grown, counted + grown
                if self._unfinished > self._total and counted:
                    raise _too_many()
                parts.append(part)
            return b"".join(parts)
        finally:
            self._unfinished -= counted

    async def parse(self, data: bytes) -> dict[str, Any]:
        """Parse a body; see `baton_gateway.http.body.parse`, and the same errors.

        Raises `Unavailable` when a large one takes too long.
        """
        if len(data) <= INLINE_BYTES:
            return parse(data)
        try:
            answer = await self._children.call(data, _SECONDS)
        except ChildTimeout:
            raise Unavailable(
                "The body of the request took too long to parse. Send a smaller one.", retry_after=1
            ) from None
        except ChildDied:
            raise InvalidRequest(
                "The body of the request needs too much memory. Send a smaller one.",
                code="request_too_large",
                status=413,
            ) from None
        return _decoder.decode(answer).object()


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"The request body is too large. Send at most {limit} bytes.",
        code="request_too_large",
        status=413,
    )


def _too_many() -> Unavailable:
    return Unavailable("Too many large bodies are being received. Try again later.", retry_after=1)
