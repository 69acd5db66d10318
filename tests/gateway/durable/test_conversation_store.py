"""Conversations in a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from baton.errors import InvalidRequest, NotFound
from baton_gateway.durable.conversation_store import MAX_ITEMS, ConversationStore
from baton_gateway.durable.object_store import ObjectStore


def test_of_many_changes_at_once_none_is_lost(open_store: Callable[..., ObjectStore]) -> None:
    async def main() -> None:
        objects = open_store(), open_store()
        one, two = map(ConversationStore, objects)
        made = await one.create("conv_1", "me", {"a": "b"})
        assert (made.items, made.metadata) == ([], {"a": "b"})

        async def append(store: ConversationStore, number: int) -> None:
            await store.change("conv_1", "me", lambda c: c.with_items([{"id": str(number)}]))

        await asyncio.gather(*(append(store, n) for n, store in enumerate((one, two) * 2)))
        found = await two.get("conv_1", "me")
        assert sorted(item["id"] for item in found.items) == ["0", "1", "2", "3"]
        with pytest.raises(InvalidRequest, match="Begin a new one"):
            found.with_items([{}] * MAX_ITEMS)
        with pytest.raises(NotFound):
            await one.get("conv_1", "you")
        await one.delete("conv_1", "me")
        with pytest.raises(NotFound):
            await append(two, 9)
        for store in objects:
            await store.close()

    asyncio.run(main())
