"""Journal in Redis, for gateways on several machines.

`baton-stream:<id>` is a hash with the record, owner, epoch and done flag of a stream, and
`baton-stream:<id>:parts` the list of its parts. Both expire together. The server's `maxmemory`
limits the total size.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from baton.logs import logger
from baton_gateway.config import Config
from baton_gateway.durable.journal import (
    StoredStream,
    StreamFenced,
    StreamRecord,
    lost,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

T = TypeVar("T")
_TRIES = 5
"""Attempts of a transaction; it restarts when another gateway changes the stream meanwhile."""

log = logger(__name__)


def _connect(url: str) -> Redis:
    import redis.asyncio

    return redis.asyncio.Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0)


class RedisJournal:
    """Streams expire `journal_seconds` after their last part."""

    problem = ""

    def __init__(self, config: Config, connect: Callable[[str], Redis] = _connect) -> None:
        self._redis = connect(config.redis_url)
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

        async def begin(pipe: Pipeline) -> None:
            pipe.multi()  # type: ignore[no-untyped-call]
            pipe.hset(name, mapping=fields)
            pipe.expire(name, self._expiry)
            await pipe.execute()

        await self._transact(name, begin)
        return 1

    async def append(self, name: str, epoch: int, part: bytes, *, done: bool) -> None:
        """See `Journal`."""
        key = _key(name)

        async def add(pipe: Pipeline) -> bool:
            if await _maybe(pipe.hget(key, "epoch")) != b"%d" % epoch:
                return False
            pipe.multi()  # type: ignore[no-untyped-call]
            if part:
                pipe.rpush(f"{key}:parts", part)
            pipe.hset(key, "done", int(done))
            pipe.expire(key, self._expiry)
            pipe.expire(f"{key}:parts", self._expiry)
            await pipe.execute()
            return True

        if not await self._transact(key, add):
            raise StreamFenced

    async def claim(self, name: str, owner: str) -> StoredStream | None:
        """See `Journal`."""
        key = _key(name)

        async def begin(pipe: Pipeline) -> StoredStream | None:
            found = await _maybe(pipe.hgetall(key))
            if not found or found[b"owner"] != owner.encode():
                return None
            pipe.multi()  # type: ignore[no-untyped-call]
            pipe.hincrby(key, "epoch", 1)
            pipe.lrange(f"{key}:parts", 0, -1)
            epoch, parts = await pipe.execute()
            ticket = msgspec.msgpack.decode(found[b"ticket"], type=StreamRecord)
            return StoredStream(ticket, tuple(parts), found[b"done"] == b"1", epoch)

        return await self._transact(key, begin)

    async def prune(self) -> None:
        """See `Journal`. Does nothing, since Redis expires keys itself."""

    async def close(self) -> None:
        """See `Journal`."""
        await self._redis.aclose()

    async def _transact(self, key: str, work: Callable[[Pipeline], Awaitable[T]]) -> T:
        """Run a transaction on a stream; retried when another gateway changes the stream
        meanwhile."""
        from redis.exceptions import RedisError, WatchError

        try:
            for _ in range(_TRIES):
                async with self._redis.pipeline(transaction=True) as pipe:
                    try:
                        await pipe.watch(key)
                        return await work(pipe)
                    except WatchError:
                        continue
        except RedisError as error:
            log.error("the journal in Redis cannot be used: %s", error)
            raise lost() from error
        raise lost()


async def _maybe(answer: Any) -> Any:
    """Return a watched pipeline's result, which is immediate contrary to its types."""
    return await answer


def _key(name: str) -> str:
    return f"baton-stream:{name}"
