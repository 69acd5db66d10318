"""Responses in a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from baton.errors import NotFound
from baton_gateway.durable.object_store import ObjectStore, StoredObject
from baton_gateway.durable.response_store import ResponseStore, StoredResponse


def test_a_response_comes_back_with_its_conversation(
    open_store: Callable[..., ObjectStore],
) -> None:
    async def main() -> None:
        objects = open_store()
        store = ResponseStore(objects)
        new = StoredResponse({"id": "resp_1", "output": [{"id": "b"}]}, [{"id": "a"}])
        await store.add("me", new)
        found = await store.get("resp_1", "me")
        assert found == new and found.conversation == [{"id": "a"}, {"id": "b"}]
        await objects.put(StoredObject("conv_1", "me", b"{}"))
        for name, owner in (("resp_1", "you"), ("conv_1", "me")):
            with pytest.raises(NotFound) as caught:
                await store.get(name, owner, "p")
            assert (caught.value.code, caught.value.param) == ("response_not_found", "p")
            with pytest.raises(NotFound):
                await store.delete(name, owner)
        await store.delete("resp_1", "me")
        with pytest.raises(NotFound):
            await store.get("resp_1", "me")
        await objects.close()

    asyncio.run(main())
