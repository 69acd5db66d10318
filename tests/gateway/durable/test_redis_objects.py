"""The Redis store: expiry, outages, objects that are gone when they are due."""

from __future__ import annotations

import asyncio

import fakeredis
import pytest

from baton.errors import Unavailable
from baton_gateway.config import Config
from baton_gateway.durable.object_store import StoredObject
from baton_gateway.durable.redis_objects import RedisObjects

CONFIG = Config(redis_url="redis://localhost", store_seconds=60)


def test_objects_expire_and_are_not_due_any_more() -> None:
    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        store = RedisObjects(CONFIG, lambda url: redis)
        await store.put(StoredObject("job_1", "me", b"x", due=1.0))
        assert 0 < await redis.ttl("baton-object:job_1") <= 60
        await redis.delete("baton-object:job_1")
        assert await store.take_due("job", 5) == []
        assert await redis.zcard("baton-due:job") == 0
        assert not await redis.exists("baton-object:job_1")
        await store.close()

    asyncio.run(main())


def test_without_redis_it_says_so() -> None:
    async def main() -> None:
        server = fakeredis.FakeServer()
        store = RedisObjects(CONFIG, lambda url: fakeredis.FakeAsyncRedis(server=server))
        server.connected = False
        for work in (store.get("resp_1", "me"), store.put(StoredObject("resp_1", "me", b""))):
            with pytest.raises(Unavailable) as caught:
                await work
            assert caught.value.code == "store_unavailable"
        await store.close()

    asyncio.run(main())
