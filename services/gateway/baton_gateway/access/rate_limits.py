"""Rate limits per API key: requests and tokens per minute, tokens per month, choices in flight.

Windows are fixed: they begin with the first use. The `limits` library stores them in Redis, if
configured, so that all gateways share them. While Redis is unreachable, each gateway counts on its
own. Choices in flight are always counted per gateway.

https://platform.openai.com/docs/guides/rate-limits
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limits import (
    RateLimitItem,
    RateLimitItemPerMinute,
    RateLimitItemPerMonth,
)
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter
from limits.errors import StorageError
from limits.util import WindowStats

from baton.errors import RateLimited
from baton.logs import logger
from baton_gateway.access.api_keys import ApiKey

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

_REDIS_SECONDS = 0.25
"""Time limit for Redis, in seconds; after it, the request is counted locally."""
_REDIS_PAUSE = 5.0
"""Seconds without Redis after a failed call."""

log = logger(__name__)


class TokenRateExceeded(RateLimited):
    """The key's tokens per minute are exceeded."""

    type = "tokens"


class QuotaExceeded(RateLimited):
    """The key's monthly quota is exceeded; a retry cannot succeed."""

    type = "insufficient_quota"
    code = "insufficient_quota"


class RateWindows:
    """Fixed windows by (limit, key), in Redis or, while it is unreachable, in memory."""

    def __init__(self, pool: ConnectionPool | None = None) -> None:
        self._local = FixedWindowRateLimiter(MemoryStorage())
        self._shared = None if pool is None else _in_redis(pool)
        self._next_try = 0.0

    async def use(
        self, item: RateLimitItem, key: str, cost: int, *, always: bool = False
    ) -> tuple[bool, WindowStats]:
        """Charge `cost` to a window if enough is left; with `always`, in any case.

        Returns whether it was charged, and the window's statistics.
        """
        if self._shared is not None and time.monotonic() >= self._next_try:
            try:
                async with asyncio.timeout(_REDIS_SECONDS):
                    return await _use(self._shared, item, key, cost, always)
            except (StorageError, TimeoutError) as error:
                self._next_try = time.monotonic() + _REDIS_PAUSE
                log.warning("Redis does not count requests, this gateway does: %s", error)
        return await _use(self._local, item, key, cost, always)


async def _use(
    limiter: FixedWindowRateLimiter, item: RateLimitItem, key: str, cost: int, always: bool
) -> tuple[bool, WindowStats]:
    fits = always or await limiter.test(item, key, cost=cost)
    if fits and cost:
        await limiter.hit(item, key, cost=cost)
    return fits, await limiter.get_window_stats(item, key)


def _in_redis(pool: ConnectionPool) -> FixedWindowRateLimiter:
    from limits.aio.storage import RedisStorage

    # The library requires an address in addition to the pool, and its types lack the pool.
    storage = RedisStorage(
        "async+redis://localhost:6379",
        wrap_exceptions=True,
        implementation="redispy",
        key_prefix="baton-limits",
        connection_pool=pool,  # type: ignore[arg-type]
    )
    return FixedWindowRateLimiter(storage)


class RateLimiter:
    """Usage of all keys. Creates one `RequestQuota` per HTTP request."""

    def __init__(self, pool: ConnectionPool | None = None) -> None:
        self.windows = RateWindows(pool)
        self.running: Counter[str] = Counter()
        """Choices in flight per key."""
        self._pool = pool

    def quota(self, key: ApiKey) -> RequestQuota:
        """Return the quota for one request of a key."""
        return RequestQuota(key, self)

    async def close(self) -> None:
        """Close the Redis connections."""
        if self._pool is not None:
            await self._pool.disconnect()


@dataclass(slots=True, eq=False)
class RequestQuota:
    """Usage of one request, charged to its key. Methods raise `RateLimited` unless noted."""

    key: ApiKey
    limiter: RateLimiter
    headers: dict[str, str] = field(default_factory=dict)
    """x-ratelimit-* headers of the response, once known."""
    _entered: int = 0

    async def request(self) -> None:
        """Count one request."""
        if limit := self.key.limits.requests_per_minute:
            fits, window = await self._use(RateLimitItemPerMinute(limit), 1)
            self._set_headers("requests", limit, window)
            if not fits:
                raise RateLimited(
                    _over("requests per min (RPM)", limit, window, 1), retry_after=_seconds(window)
                )

    def acquire(self, choices: int) -> None:
        """Reserve `choices` in flight; `release` returns them."""
        limit, running = self.key.limits.concurrent_choices, self.limiter.running
        if limit and running[self.key.name] + choices > limit:
            raise RateLimited(
                f"Rate limit reached on choices in flight: Limit {limit}, Used "
                f"{running[self.key.name]}, Requested {choices}. Wait for an answer first.",
                retry_after=1,
            )
        running[self.key.name] += choices
        self._entered += choices

    def release(self) -> None:
        """Return all reserved choices."""
        self.limiter.running[self.key.name] -= self._entered
        if not self.limiter.running[self.key.name]:
            del self.limiter.running[self.key.name]
        self._entered = 0

    async def charge_prompt(self, tokens: int) -> None:
        """Charge the tokens of a prompt before it runs."""
        if quota := self.key.limits.tokens_per_month:
            fits, window = await self._use(RateLimitItemPerMonth(quota), tokens)
            if not fits:
                raise QuotaExceeded(
                    f"You exceeded your current quota: Limit {quota} tokens per month, Used "
                    f"{quota - window.remaining}, Requested {tokens}. Ask the operator for more."
                )
        if limit := self.key.limits.tokens_per_minute:
            fits, window = await self._use(RateLimitItemPerMinute(limit, namespace="T"), tokens)
            self._set_headers("tokens", limit, window)
            if not fits:
                raise TokenRateExceeded(
                    _over("tokens per min (TPM)", limit, window, tokens),
                    retry_after=_seconds(window),
                )

    async def charge_completion(self, tokens: int) -> None:
        """Charge the generated tokens after the run. Never raises."""
        if tokens and (quota := self.key.limits.tokens_per_month):
            await self._use(RateLimitItemPerMonth(quota), tokens, always=True)
        if tokens and (limit := self.key.limits.tokens_per_minute):
            item = RateLimitItemPerMinute(limit, namespace="T")
            await self._use(item, tokens, always=True)

    async def _use(
        self, item: RateLimitItem, cost: int, *, always: bool = False
    ) -> tuple[bool, WindowStats]:
        return await self.limiter.windows.use(item, self.key.name, cost, always=always)

    def _set_headers(self, what: str, limit: int, window: WindowStats) -> None:
        self.headers[f"x-ratelimit-limit-{what}"] = str(limit)
        self.headers[f"x-ratelimit-remaining-{what}"] = str(window.remaining)
        self.headers[f"x-ratelimit-reset-{what}"] = duration(window.reset_time - time.time())


def duration(seconds: float) -> str:
    """Format a duration like OpenAI: 1s, 6m0s, 120ms."""
    if seconds < 1:
        return f"{max(0, math.ceil(seconds * 1000))}ms"
    minutes, seconds_left = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{seconds_left}s" if minutes else f"{seconds_left}s"


def _seconds(window: WindowStats) -> int:
    return max(1, math.ceil(window.reset_time - time.time()))


def _over(what: str, limit: int, window: WindowStats, requested: int) -> str:
    return (
        f"Rate limit reached on {what}: Limit {limit}, Used {limit - window.remaining}, Requested "
        f"{requested}. Please try again in {_seconds(window)}s."
    )
