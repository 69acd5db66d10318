"""Responses as they are stored: each with all that its model was given."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.errors import NotFound
from baton_gateway.durable.object_store import ObjectStore, StoredObject


class StoredResponse(msgspec.Struct):
    """A response and its input."""

    response: dict[str, Any]
    """The response object as clients see it."""
    input: list[dict[str, Any]]
    """Items of the conversation before it."""

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """Items of the conversation with its output."""
        return [*self.input, *self.response["output"]]


class ResponseStore:
    """Responses in an object store. Every method raises `Unavailable` when that is unavailable."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def add(self, owner: str, new: StoredResponse) -> None:
        """Store a response."""
        stored = await self._objects.put(_object(owner, new))
        assert stored, "ids are random"

    async def get(self, name: str, owner: str, param: str | None = None) -> StoredResponse:
        """Return a response. Raises `NotFound`, with the field `param`."""
        found = await self._objects.get(name, owner) if _is_response(name) else None
        if found is None:
            raise _missing(name, param)
        return msgspec.json.decode(found.data, type=StoredResponse)

    async def delete(self, name: str, owner: str) -> None:
        """Delete a response. Raises `NotFound`."""
        if not (_is_response(name) and await self._objects.delete(name, owner)):
            raise _missing(name, None)


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
