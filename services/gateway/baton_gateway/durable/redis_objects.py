"""Store of objects in Redis, for gateways on several machines.

`baton-object:<id>` is a hash with the owner, data, version and due time of an object. The sorted
set `baton-due:<kind>` contains the names of due objects by time. The server's `maxmemory` limits
the total size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from baton_gateway.config import Config
from baton_gateway.durable.object_store import StoredObject, unavailable
from baton_gateway.durable.redis_connection import RedisConnection, at_once, connect_redis

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

_AT_ONCE = 50
"""Most objects that one call of `take_due` returns."""


class RedisObjects:
    """Objects expire `store_seconds` after their last change."""

    problem = ""

    def __init__(self, config: Config, connect: Callable[[str], Redis] = connect_redis) -> None:
        name = "the store of responses in Redis"
        self._redis = RedisConnection(connect(config.redis_url), name, unavailable)
        self._expiry = max(1, round(config.store_seconds))

    async def get(self, name: str, owner: str) -> StoredObject | None:
        """See `ObjectStore`."""

        async def read(pipe: Pipeline) -> StoredObject | None:
            return _owned(name, await at_once(pipe.hgetall(_key(name))), owner)

        return await self._redis.transact(_key(name), read)

    async def put(self, new: StoredObject) -> bool:
        """See `ObjectStore`. Redis itself refuses objects beyond its memory limit."""
        key, due = _key(new.id), f"baton-due:{new.kind}"
        fields: dict[Any, Any] = {
            "owner": new.owner,
            "data": new.data,
            "version": new.version + 1,
            "due": new.due,
        }

        async def write(pipe: Pipeline) -> bool:
            if int(await at_once(pipe.hget(key, "version")) or 0) != new.version:
                return False
            pipe.multi()
            pipe.hset(key, mapping=fields)
            pipe.expire(key, self._expiry)
            if new.due:
                pipe.zadd(due, {new.id: new.due})
            else:
                pipe.zrem(due, new.id)
            await pipe.execute()
            return True

        return await self._redis.transact(key, write)

    async def delete(self, name: str, owner: str) -> bool:
        """See `ObjectStore`."""
        key = _key(name)

        async def remove(pipe: Pipeline) -> bool:
            stored = _owned(name, await at_once(pipe.hgetall(key)), owner)
            if stored is None:
                return False
            pipe.multi()
            pipe.delete(key)
            pipe.zrem(f"baton-due:{stored.kind}", name)
            await pipe.execute()
            return True

        return await self._redis.transact(key, remove)

    async def take_due(self, kind: str, seconds: float) -> list[StoredObject]:
        """See `ObjectStore`."""
        due = f"baton-due:{kind}"

        async def take(pipe: Pipeline) -> list[StoredObject]:
            now = time.time()
            names = [
                name.decode()
                for name in await at_once(pipe.zrangebyscore(due, 0, now, start=0, num=_AT_ONCE))
            ]
            fields_of = {name: await _watched(pipe, name) for name in names}
            pipe.multi()
            due_objects = []
            for name, fields in fields_of.items():
                if not fields:
                    pipe.zrem(due, name)
                    continue
                pipe.zadd(due, {name: now + seconds})
                pipe.hset(_key(name), mapping={"due": now + seconds})
                pipe.hincrby(_key(name), "version", 1)
                due_objects.append(_later(_object(name, fields), now + seconds))
            await pipe.execute()
            return due_objects

        return await self._redis.transact(due, take)

    async def prune(self) -> None:
        """See `ObjectStore`. Does nothing, since Redis expires keys itself."""

    async def close(self) -> None:
        """See `ObjectStore`."""
        await self._redis.close()


async def _watched(pipe: Pipeline, name: str) -> dict[bytes, bytes]:
    """Return the fields of an object, and watch it for changes until the transaction."""
    await at_once(pipe.watch(_key(name)))
    fields: dict[bytes, bytes] = await at_once(pipe.hgetall(_key(name)))
    return fields


def _object(name: str, fields: dict[bytes, bytes]) -> StoredObject:
    """Return the object in a hash."""
    version, due = int(fields[b"version"]), float(fields[b"due"])
    return StoredObject(name, fields[b"owner"].decode(), fields[b"data"], version, due)


def _owned(name: str, fields: dict[bytes, bytes], owner: str) -> StoredObject | None:
    """Return the object in a hash; None if there is none, or it is another owner's."""
    stored = _object(name, fields) if fields else None
    return stored if stored is not None and stored.owner == owner else None


def _later(stored: StoredObject, due: float) -> StoredObject:
    return structs.replace(stored, version=stored.version + 1, due=due)


def _key(name: str) -> str:
    return f"baton-object:{name}"
