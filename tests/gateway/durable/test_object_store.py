"""Every store satisfies `baton_gateway.durable.object_store.ObjectStore`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from baton.errors import SettingsError
from baton_gateway.config import Config
from baton_gateway.durable.object_store import ObjectStore, StoredObject
from baton_gateway.durable.object_store import open_store as chosen
from baton_gateway.durable.redis_objects import RedisObjects
from baton_gateway.durable.sqlite_objects import SqliteObjects

Open = Callable[..., ObjectStore]
Later = Callable[[float], None]
NEW = StoredObject("resp_1", "me", b"\0data")


def test_an_object_outlives_who_wrote_it_and_is_its_owners(open_store: Open) -> None:
    async def main() -> None:
        one = open_store()
        assert await one.put(NEW) and not await one.put(NEW)
        await one.close()
        two = open_store()
        assert await two.get("resp_1", "me") == structs.replace(NEW, version=1)
        for name, owner in (("resp_1", "you"), ("resp_1", ""), ("resp_2", "me"), ("", "me")):
            assert await two.get(name, owner) is None
            assert not await two.delete(name, owner)
        assert await two.delete("resp_1", "me") and await two.get("resp_1", "me") is None
        assert await two.put(NEW), "the name is free again"
        await two.close()

    asyncio.run(main())


def test_of_two_changes_the_second_is_refused(open_store: Open) -> None:
    async def main() -> None:
        one, two = open_store(), open_store()
        await one.put(NEW)
        old = await two.get("resp_1", "me")
        assert old is not None
        assert await one.put(structs.replace(old, data=b"1"))
        assert not await two.put(structs.replace(old, data=b"2"))
        assert not await two.put(StoredObject("resp_2", "me", b"x", version=5))
        found = await two.get("resp_1", "me")
        assert found == StoredObject("resp_1", "me", b"1", version=2)
        await one.close()
        await two.close()

    asyncio.run(main())


def test_what_is_due_is_taken_by_one(open_store: Open, later: Later) -> None:
    async def main() -> None:
        one, two = open_store(), open_store()
        now = time.time()
        for name, due in (("job_1", now - 1), ("job_2", now + 60), ("job_3", 0), ("resp_1", now)):
            await one.put(StoredObject(name, "me", b"x", due=due))
        [taken] = await one.take_due("job", 30)
        assert (taken.id, taken.data, taken.version) == ("job_1", b"x", 2)
        assert await two.take_due("job", 60) == []
        assert await one.put(structs.replace(taken, data=b"y", due=now + 50)), "it may be changed"
        later(55.0)
        [again] = await two.take_due("job", 60)
        assert (again.data, again.version) == (b"y", 4)
        assert not await one.put(structs.replace(taken, version=3)), "it is another's now"
        assert await two.put(structs.replace(again, due=0.0))
        assert await two.take_due("job", 0) == []
        assert await two.delete("job_2", "me")
        await one.close()
        await two.close()

    asyncio.run(main())


def test_old_objects_are_forgotten(open_store: Open, later: Later) -> None:
    async def main() -> None:
        store = open_store(store_seconds=100.0)
        await store.put(NEW)
        assert await store.get("resp_1", "me") is not None
        later(101.0)
        assert await store.get("resp_1", "me") is None
        await store.prune()
        assert await store.put(NEW)
        await store.close()

    asyncio.run(main())


def test_the_settings_choose_one(tmp_path: Path) -> None:
    assert isinstance(chosen(Config(run_dir=tmp_path)), SqliteObjects)
    assert isinstance(chosen(Config(redis_url="redis://localhost")), RedisObjects)
    both = Config(redis_url="redis://localhost", store="sqlite", run_dir=tmp_path)
    assert isinstance(chosen(both), SqliteObjects)
    with pytest.raises(SettingsError, match="sqlite"):
        Config(store="disk")
