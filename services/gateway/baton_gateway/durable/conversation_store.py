"""Stored conversations: items that responses and clients append."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from baton.errors import InvalidRequest, NotFound, Unavailable
from baton_gateway.durable.object_store import ObjectStore, StoredObject

MAX_ITEMS = 4096
"""Maximum items of one conversation."""
_TRIES = 10
"""Attempts of a change; it is retried when another request changes the conversation."""


class Conversation(msgspec.Struct, frozen=True):
    """A conversation."""

    id: str
    created_at: int
    """Unix time in seconds."""
    metadata: dict[str, str]
    items: list[dict[str, Any]]

    def with_items(self, items: list[dict[str, Any]]) -> Conversation:
        """Return the conversation with more items. Raises `InvalidRequest` for too many."""
        if len(self.items) + len(items) > MAX_ITEMS:
            raise InvalidRequest(
                f"A conversation has at most {MAX_ITEMS} items. Begin a new one.",
                code="conversation_too_long",
                param="items",
            )
        return structs.replace(self, items=[*self.items, *items])


class ConversationStore:
    """Conversations in an object store. Every method raises `Unavailable` if the store is
    unavailable."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def create(self, name: str, owner: str, metadata: dict[str, str]) -> Conversation:
        """Create an empty conversation of this name."""
        new = Conversation(name, int(time.time()), metadata, [])
        stored = await self._objects.put(StoredObject(name, owner, msgspec.json.encode(new)))
        assert stored, "ids are random"
        return new

    async def get(self, name: str, owner: str, param: str | None = None) -> Conversation:
        """Return a conversation. Raises `NotFound` with the field `param`."""
        return _decoded(await self._find(name, owner, param))

    async def append(self, name: str, owner: str, items: list[dict[str, Any]]) -> None:
        """Append the items that the conversation does not have yet. Raises `NotFound`."""

        def work(conversation: Conversation) -> Conversation:
            ids = {item["id"] for item in conversation.items}
            return conversation.with_items([item for item in items if item["id"] not in ids])

        await self.change(name, owner, work)

    async def change(
        self, name: str, owner: str, work: Callable[[Conversation], Conversation]
    ) -> Conversation:
        """Replace a conversation by `work` of it, which may be called repeatedly. Raises
        `NotFound`."""
        for _ in range(_TRIES):
            old = await self._find(name, owner, None)
            new = work(_decoded(old))
            if await self._objects.put(structs.replace(old, data=msgspec.json.encode(new))):
                return new
        raise Unavailable("Too many requests change this conversation. Try again.", retry_after=1)

    async def delete(self, name: str, owner: str) -> None:
        """Delete a conversation. Raises `NotFound`."""
        if not (_is_conversation(name) and await self._objects.delete(name, owner)):
            raise _missing(name, None)

    async def _find(self, name: str, owner: str, param: str | None) -> StoredObject:
        stored = await self._objects.get(name, owner) if _is_conversation(name) else None
        if stored is None:
            raise _missing(name, param)
        return stored


def _decoded(stored: StoredObject) -> Conversation:
    return msgspec.json.decode(stored.data, type=Conversation)


def _is_conversation(name: str) -> bool:
    return name.startswith("conv_")


def _missing(name: str, param: str | None) -> NotFound:
    return NotFound(
        f"Conversation with id '{name[:80]}' not found. Its time is over, or it was deleted.",
        code="conversation_not_found",
        param=param,
    )
