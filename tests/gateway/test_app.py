"""The application: engine life cycle and mounted routes."""

from __future__ import annotations

import asyncio

from baton_gateway.app import create_app
from baton_gateway.config import Config
from tests.fakes.gateway_app import site
from tests.fakes.gateway_engine import FakeEngine


def test_the_engine_lives_as_long_as_the_application() -> None:
    async def main() -> None:
        config = Config()
        engine = FakeEngine(config)
        app = create_app(config, engine)
        assert engine.tokenizers.infos == []
        async with app.router.lifespan_context(app):
            assert (await engine.models.get(None)).model == "tiny"
            assert [info.vocab_size for info in engine.tokenizers.infos] == [260]
        assert engine.tokenizers.infos == []
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_the_page_is_mounted_unless_switched_off() -> None:
    for playground in (True, False):
        with site(playground=playground) as here:
            status = 200 if playground else 404
            assert here.get("/").status_code == here.get("/static/page.css").status_code == status
