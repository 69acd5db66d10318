"""Journal in Redis, for gateways on several machines.

`baton-stream:<id>` is a hash with the record, owner, epoch and done flag of a stream, and
`baton-stream:<id>:parts` the list of its parts. Both expire together. The server's `maxmemory`
limits the total size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from baton_gateway.config import Config
from baton_gateway.durable.journal import (
    StoredStream,
    StreamExists,
    StreamFenced,
    StreamRecord,
    unavailable,
)
from baton_gateway.durable.redis_connection import RedisConnection, at_once, connect_redis

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline


class RedisJournal:
    """Streams expire `journal_seconds` after their last part."""

    problem = ""

    def __init__(self, config: Config, connect: Callable[[str], Redis] = connect_redis) -> None:
        self._redis = RedisConnection(
            connect(config.redis_url), "the journal in Redis", unavailable
        )
        self._expiry = max(1, round(config.journal_seconds))

    async def create(self, ticket: StreamRecord) -> int:
        """See `Journal`."""
        name = _key(ticket.id)
        fields: dict[Any, Any] = {
            "ticket": msgspec.msgpack.encode(ticket),
            "owner": ticket.owner,
            "epoch": 1,
            "done": 0,
        }

        async def begin(pipe: Pipeline) -> bool:
            if await at_once(pipe.exists(name)):
                return False
            pipe.multi()
            pipe.hset(name, mapping=fields)
            pipe.expire(name, self._expiry)
            await pipe.execute()
            return True

        if not await self._redis.transact(name, begin):
            raise StreamExists
        return 1

    async def append(self, name: str, epoch: int, part: bytes, *, done: bool) -> None:
        """See `Journal`."""
        key = _key(name)

        async def add(pipe: Pipeline) -> bool:
            if await at_once(pipe.hget(key, "epoch")) != b"%d" % epoch:
                return False
            pipe.multi()
            if part:
                pipe.rpush(f"{key}:parts", part)
            pipe.hset(key, "done", int(done))
            pipe.expire(key, self._expiry)
            pipe.expire(f"{key}:parts", self._expiry)
            await pipe.execute()
            return True

        if not await self._redis.transact(key, add):
            raise StreamFenced

    async def claim(self, name: str, owner: str) -> StoredStream | None:
        """See `Journal`."""
        key = _key(name)

        async def begin(pipe: Pipeline) -> StoredStream | None:
            fields = await at_once(pipe.hgetall(key))
            if not fields or fields[b"owner"] != owner.encode():
                return None
            pipe.multi()
            pipe.hincrby(key, "epoch", 1)
            pipe.lrange(f"{key}:parts", 0, -1)
            epoch, parts = await pipe.execute()
            ticket = msgspec.msgpack.decode(fields[b"ticket"], type=StreamRecord)
            return StoredStream(ticket, tuple(parts), fields[b"done"] == b"1", epoch)

        return await self._redis.transact(key, begin)

    async def prune(self) -> None:
        """See `Journal`. Does nothing, since Redis expires keys itself."""

    async def close(self) -> None:
        """See `Journal`."""
        await self._redis.close()


def _key(name: str) -> str:
    return f"baton-stream:{name}"
