"""Stored responses: each with its complete input."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from baton.errors import NotFound, Unavailable
from baton_gateway.durable.object_store import ObjectStore, StoredObject

_TRIES = 10
"""Attempts of a change; it is retried when another gateway changes the response."""


class StoredResponse(msgspec.Struct):
    """A response and its input."""

    response: dict[str, Any]
    """The response object of the API."""
    input: list[dict[str, Any]]
    """Items of the conversation before it."""
    request: str = ""
    """Digest of the request, for one with an idempotency key."""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.response["status"] in ("queued", "in_progress")

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """Items of the conversation, including its output."""
        return [*self.input, *self.response["output"]]


class ResponseStore:
    """Responses in an object store. Every method raises `Unavailable` if the store is
    unavailable."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def add(self, owner: str, new: StoredResponse) -> None:
        """Store a response."""
        stored = await self._objects.put(_object(owner, new))
        assert stored, "ids are random"

    async def get(self, name: str, owner: str, param: str | None = None) -> StoredResponse:
        """Return a response. Raises `NotFound`, with the field `param`."""
        stored = await self._objects.get(name, owner) if _is_response(name) else None
        if stored is None:
            raise _missing(name, param)
        return _decoded(stored)

    async def finish(self, owner: str, response: dict[str, Any]) -> bool:
        """Replace a running response by its end. False if it has ended before, or was deleted."""
        for _ in range(_TRIES):
            old = await self._objects.get(response["id"], owner)
            if old is None:
                return False
            stored = _decoded(old)
            if not stored.running:
                return False
            new = msgspec.json.encode(structs.replace(stored, response=response))
            if await self._objects.put(structs.replace(old, data=new)):
                return True
        raise Unavailable("Too many requests change this response. Try again.", retry_after=1)

    async def delete(self, name: str, owner: str) -> None:
        """Delete a response. Raises `NotFound`."""
        if not (_is_response(name) and await self._objects.delete(name, owner)):
            raise _missing(name, None)


def _decoded(stored: StoredObject) -> StoredResponse:
    return msgspec.json.decode(stored.data, type=StoredResponse)


def _object(owner: str, new: StoredResponse) -> StoredObject:
    return StoredObject(new.response["id"], owner, msgspec.json.encode(new))


def _is_response(name: str) -> bool:
    return name.startswith("resp_")


def _missing(name: str, param: str | None) -> NotFound:
    return NotFound(
        f"Response with id '{name[:80]}' not found. It was not stored, its time is over, or it was "
        "deleted.",
        code="response_not_found",
        param=param,
    )
