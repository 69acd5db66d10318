"""When a gateway takes no requests, and when it is unhealthy."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from baton.errors import Unavailable
from baton.protocol import (
    ModelStats,
)
from baton_gateway.clients.connection import wait_until
from tests.fakes.engine_runner import admitted, generation, run, text_of
from tests.fakes.gateway_engine import FakeEngine


def test_too_many_requests_are_refused() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.hold = True
        first = asyncio.create_task(text_of(engine, generation()))
        await admitted(engine)
        with pytest.raises(Unavailable) as caught:
            await text_of(engine, generation())
        assert (caught.value.code, caught.value.retry_after) == ("server_is_overloaded", 1)
        first.cancel()

    run(check, max_concurrent_requests=1)


def test_draining_takes_no_new_work() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.status.draining = True
        with pytest.raises(Unavailable) as caught:
            await text_of(engine, generation())
        assert caught.value.code == "shutting_down"

    run(check)


def test_a_model_without_a_tokenizer_of_its_name_is_unhealthy() -> None:
    async def check(engine: FakeEngine) -> None:
        async def becomes(*reasons: str) -> bool:
            return await wait_until(
                lambda: engine.status.unhealthy_reasons() == list(reasons), seconds=10
            )

        assert await becomes()
        stats = engine.scheduler.stats()
        renamed = ModelStats("other", 512, 260)
        engine.scheduler.stats = lambda: structs.replace(stats, models=(renamed,))  # type: ignore[method-assign]
        assert await becomes("no tokenizer answers for other")
        assert engine.snapshot()["models"] == ["other", "tiny"]
        engine.scheduler.stats = lambda: structs.replace(  # type: ignore[method-assign]
            stats, models=(renamed, *stats.models)
        )
        assert await becomes(), "one of the models is served"

    run(check)
