"""The Redis journal: expiry, coexistence with the directory's keys, outages."""

from __future__ import annotations

import asyncio

import fakeredis
import pytest

from baton.errors import Unavailable
from baton_gateway.config import Config
from baton_gateway.durable.redis import RedisJournal
from tests.gateway.durable.conftest import ticket

CONFIG = Config(redis_url="redis://localhost", journal_seconds=60)


def test_both_keys_expire_and_neither_is_taken_for_an_address() -> None:
    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        journal = RedisJournal(CONFIG, lambda url: redis)
        await journal.create(ticket())
        await journal.append("s", 1, b"1", done=False)
        keys = {key.decode() async for key in redis.scan_iter("*")}
        assert keys == {"baton-stream:s", "baton-stream:s:parts"}
        for key in keys:
            assert 0 < await redis.ttl(key) <= 60
        assert not [key async for key in redis.scan_iter("baton:*")]
        await journal.close()

    asyncio.run(main())


def test_without_redis_it_says_so() -> None:
    async def main() -> None:
        server = fakeredis.FakeServer()
        journal = RedisJournal(CONFIG, lambda url: fakeredis.FakeAsyncRedis(server=server))
        server.connected = False
        for work in (
            journal.create(ticket()),
            journal.append("s", 1, b"1", done=False),
            journal.claim("s", "me"),
        ):
            with pytest.raises(Unavailable) as caught:
                await work
            assert caught.value.code == "journal_unavailable"
        await journal.close()

    asyncio.run(main())
