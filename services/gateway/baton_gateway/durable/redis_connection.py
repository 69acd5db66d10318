"""Transactions in Redis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from baton.errors import Unavailable
from baton.logs import logger

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

T = TypeVar("T")
_TRIES = 5
"""Attempts of a transaction; it restarts when another gateway changes the key meanwhile."""

log = logger(__name__)


def connect_redis(url: str) -> Redis:
    """Return a client of the server at `url`; it connects on first use."""
    import redis.asyncio

    return redis.asyncio.Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0)


class RedisConnection:
    """A client that runs every operation as one transaction."""

    def __init__(self, redis: Redis, name: str, unavailable: Callable[[], Unavailable]) -> None:
        """
        Args:
            name: of the content, for messages.
            unavailable: returns the error when Redis cannot be used.
        """
        self._redis, self._name, self._unavailable = redis, name, unavailable
        self._trouble = ""

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.aclose()

    async def transact(self, key: str, work: Callable[[Pipeline], Awaitable[T]]) -> T:
        """Run a transaction on a key; retried when another gateway changes the key meanwhile.

        Raises `Unavailable`.
        """
        from redis.exceptions import RedisError, WatchError

        try:
            for _ in range(_TRIES):
                async with self._redis.pipeline(transaction=True) as pipe:
                    try:
                        await pipe.watch(key)
                        result = await work(pipe)
                        self._trouble = ""
                        return result
                    except WatchError:
                        continue
        except RedisError as error:
            self._say(str(error))
            raise self._unavailable() from error
        raise self._unavailable()

    def _say(self, trouble: str) -> None:
        """Log a problem once, instead of with every request."""
        if trouble != self._trouble:
            log.error("%s cannot be used: %s", self._name, trouble)
        self._trouble = trouble


async def at_once(answer: Any) -> Any:
    """Return a watched pipeline's result, which is immediate contrary to its types."""
    return await answer
