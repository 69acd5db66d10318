"""Commands of operators wait for their effects."""

from __future__ import annotations

import asyncio

import pytest

from baton.errors import InvalidRequest
from baton.protocol import LoadAdapter, Pause, Resume, UnloadAdapter
from baton_gateway.config import Config
from tests.fakes.gateway_engine import MODEL, FakeEngine


def test_a_command_returns_once_its_effect_is_visible_here() -> None:
    async def check(engine: FakeEngine) -> None:
        administration, catalogue = engine.administration, engine.models.catalogue
        await engine.models.with_worker(MODEL, 60)
        await administration.change_state(MODEL, Pause())
        assert (await engine.models.get(MODEL)).paused
        await administration.change_state(MODEL, Resume())
        assert not (await engine.models.get(MODEL)).paused
        await administration.load_adapter(MODEL, LoadAdapter("sql", "/sql"))
        assert "sql" in catalogue.names
        await administration.unload_adapter(MODEL, UnloadAdapter("sql"))
        assert "sql" not in catalogue.names
        engine.scheduler.refusal = "no"
        with pytest.raises(InvalidRequest, match="no"):
            await administration.change_state(MODEL, Pause())

    async def main() -> None:
        engine = FakeEngine(Config(service_wait_seconds=60))
        await engine.start()
        try:
            await check(engine)
        finally:
            await engine.close()

    asyncio.run(main())
