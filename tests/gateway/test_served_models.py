"""Models whose worker or tokenizer is away."""

from __future__ import annotations

import asyncio

import pytest

from baton.errors import Unavailable
from baton.protocol import (
    Vocabulary,
)
from baton_gateway.config import Config
from tests.fakes.engine_runner import generation, run, text_of
from tests.fakes.gateway_engine import FakeEngine, worker


def test_nobody_there_is_said_soon() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.workers = ()
        await asyncio.sleep(0.3)
        with pytest.raises(Unavailable) as caught:
            await text_of(engine, generation())
        assert (caught.value.code, caught.value.status) == ("no_worker", 503)
        engine.scheduler.workers = (worker("hung"),)
        await asyncio.sleep(0.3)
        with pytest.raises(Unavailable, match="No worker is ready"):
            await text_of(engine, generation())
        assert engine.status.unhealthy_reasons() == ["worker worker-1 is hung"]

    run(check)


def test_no_tokenizer_is_said_soon() -> None:
    async def check(engine: FakeEngine) -> None:
        with pytest.raises(Unavailable, match="No tokenizer"):
            await text_of(engine, generation())
        assert "no tokenizer answers" in engine.status.unhealthy_reasons()

    async def main() -> None:
        engine = FakeEngine(Config(service_wait_seconds=0.1))
        engine.tokenizer.silent = True
        await engine.start()
        try:
            await check(engine)
        finally:
            await engine.close()

    asyncio.run(main())


def test_the_vocabulary_is_asked_for_once() -> None:
    async def check(engine: FakeEngine) -> None:
        for _ in range(2):
            assert (await engine.models.vocabulary("tiny")).text(104) == "h"
        assert sum(isinstance(m, Vocabulary) for m in engine.tokenizer.seen) == 1

    run(check)
