"""Transactions in Redis: those that others disturb are made again."""

from __future__ import annotations

import asyncio
from typing import Any

import fakeredis
import pytest

from baton.errors import Unavailable
from baton_gateway.durable.object_store import unavailable
from baton_gateway.durable.redis_connection import RedisConnection, at_once


@pytest.mark.parametrize("disturbed", [1, 10**6])
def test_a_disturbed_transaction_is_made_again_a_few_times(disturbed: int) -> None:
    async def main() -> None:
        server = fakeredis.FakeServer()
        other = fakeredis.FakeAsyncRedis(server=server)
        here = RedisConnection(fakeredis.FakeAsyncRedis(server=server), "it", unavailable)
        tries = 0

        async def add(pipe: Any) -> int:
            nonlocal tries
            tries += 1
            seen = int(await at_once(pipe.get("k")) or 0)
            if tries <= disturbed:
                await other.set("k", 5)
            pipe.multi()
            pipe.set("k", seen + 1)
            await pipe.execute()
            return seen + 1

        if disturbed == 1:
            assert (await here.transact("k", add), tries) == (6, 2)
        else:
            with pytest.raises(Unavailable):
                await here.transact("k", add)
        await here.close()
        await other.aclose()

    asyncio.run(main())
