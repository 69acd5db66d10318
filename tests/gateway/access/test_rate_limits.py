"""Limits per minute, per month and on concurrency, in memory and in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import fakeredis
import pytest
from redis.asyncio import ConnectionPool

from baton.errors import RateLimited
from baton_gateway.access.api_keys import ApiKey, KeyLimits
from baton_gateway.access.rate_limits import (
    QuotaExceeded,
    RateLimiter,
    RequestQuota,
    TokenRateExceeded,
    duration,
)


def _key(name: str = "a", **limits: int) -> ApiKey:
    return ApiKey(name, name, (), KeyLimits(**limits))


def run(
    check: Callable[[RateLimiter], Awaitable[None]], pool: ConnectionPool | None = None
) -> None:
    async def main() -> None:
        limiter = RateLimiter(pool)
        await check(limiter)
        await limiter.close()

    asyncio.run(main())


@pytest.fixture(params=["memory", "redis"])
def pool(request: pytest.FixtureRequest) -> Any:
    if request.param == "memory":
        return None
    return fakeredis.FakeAsyncRedis().connection_pool


def test_requests_per_minute(pool: Any) -> None:
    async def check(limiter: RateLimiter) -> None:
        budgets = [limiter.quota(_key(requests_per_minute=3)) for _ in range(4)]
        for budget in budgets[:3]:
            await budget.request()
        with pytest.raises(RateLimited) as caught:
            await budgets[3].request()
        error = caught.value
        assert (error.status, error.type, error.code) == (429, "requests", "rate_limit_exceeded")
        assert error.retry_after is not None and 1 <= error.retry_after <= 60
        assert "Limit 3, Used 3, Requested 1" in error.message
        told = [b.headers["x-ratelimit-remaining-requests"] for b in budgets]
        assert told == ["2", "1", "0", "0"]
        assert {b.headers["x-ratelimit-limit-requests"] for b in budgets} == {"3"}
        assert budgets[0].headers["x-ratelimit-reset-requests"] in {"1m0s", "60s", "59s"}
        await limiter.quota(_key("b", requests_per_minute=3)).request()
        await limiter.quota(_key("a")).request()

    run(check, pool)


def test_tokens_per_minute_of_prompts_and_answers(pool: Any) -> None:
    """An answer is counted when its length is known, even beyond the limit."""

    async def check(limiter: RateLimiter) -> None:
        key = _key(requests_per_minute=100, tokens_per_minute=100)
        first, second, third = (limiter.quota(key) for _ in range(3))
        await first.request()
        await first.charge_prompt(30)
        await first.charge_completion(30)
        await second.charge_prompt(40)
        assert second.headers["x-ratelimit-remaining-tokens"] == "0"
        await second.charge_completion(500)
        with pytest.raises(TokenRateExceeded) as caught:
            await third.charge_prompt(1)
        error = caught.value
        assert (error.status, error.type, error.code) == (429, "tokens", "rate_limit_exceeded")
        assert error.retry_after and "tokens per min (TPM)" in error.message

    run(check, pool)


def test_a_prompt_that_is_refused_costs_nothing(pool: Any) -> None:
    async def check(limiter: RateLimiter) -> None:
        key = _key(tokens_per_minute=100)
        for _ in range(3):
            with pytest.raises(TokenRateExceeded):
                await limiter.quota(key).charge_prompt(101)
        await limiter.quota(key).charge_prompt(100)

    run(check, pool)


def test_a_spent_quota_is_not_to_be_tried_again(pool: Any) -> None:
    async def check(limiter: RateLimiter) -> None:
        budget = limiter.quota(_key(tokens_per_month=100))
        await budget.charge_prompt(60)
        await budget.charge_completion(40)
        with pytest.raises(QuotaExceeded) as caught:
            await budget.charge_prompt(1)
        error = caught.value
        assert (error.status, error.type, error.code) == (
            429, "insufficient_quota", "insufficient_quota",
        )  # fmt: skip
        assert error.retry_after is None

    run(check, pool)


def test_choices_in_flight() -> None:
    async def check(limiter: RateLimiter) -> None:
        one, two = (limiter.quota(_key(concurrent_choices=4)) for _ in range(2))
        one.acquire(3)
        with pytest.raises(RateLimited) as caught:
            two.acquire(2)
        assert caught.value.retry_after == 1
        two.release()
        two.acquire(1)
        one.release()
        one.release()
        limiter.quota(_key("b", concurrent_choices=4)).acquire(4)
        assert limiter.running == {"a": 1, "b": 4}
        two.release()
        assert limiter.running == {"b": 4}

    run(check)


def test_without_limits_nothing_is_counted() -> None:
    async def check(limiter: RateLimiter) -> None:
        budget = RequestQuota(ApiKey(), limiter)
        await budget.request()
        await budget.charge_prompt(10**9)
        await budget.charge_completion(10**9)
        assert not budget.headers

    run(check)


def test_two_gateways_count_together_in_redis_and_each_alone_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = _key(requests_per_minute=2)

    async def main() -> None:
        server = fakeredis.FakeServer()

        def gateway() -> RateLimiter:
            return RateLimiter(fakeredis.FakeAsyncRedis(server=server).connection_pool)

        one, two = gateway(), gateway()
        await one.quota(key).request()
        await two.quota(key).request()
        with pytest.raises(RateLimited):
            await one.quota(key).request()
        server.connected = False
        await one.quota(key).request()
        await one.quota(key).request()
        with pytest.raises(RateLimited):
            await one.quota(key).request()
        assert "this gateway does" in caplog.text

    asyncio.run(main())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0ms"), (0.12, "120ms"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s"), (90, "1m30s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
