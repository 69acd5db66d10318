"""Run a test against an engine that has met its servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.generation.output import OutputDelta
from baton_gateway.generation.request import GenerationRequest, TextPrompt
from tests.fakes.gateway_engine import FakeEngine
from tests.support.gateway.generation_requests import request_of

REPLY = "Hello from Baton."


def generation(**fields: Any) -> GenerationRequest:
    return request_of(**({"prompts": (TextPrompt("hi"),)} | fields))


async def text_of(engine: Engine, request: GenerationRequest) -> dict[int, str]:
    texts: dict[int, str] = {}
    async for event in engine.generate(request):
        if isinstance(event, OutputDelta):
            texts[event.choice] = texts.get(event.choice, "") + event.text
    return texts


async def admitted(engine: FakeEngine, choices: int = 1) -> None:
    """Return once the scheduler has that many sequences, however slow the machine is."""
    async with asyncio.timeout(60):
        while len(engine.scheduler.live) < choices:
            await asyncio.sleep(0.005)


def run(test: Callable[[FakeEngine], Awaitable[None]], **settings: Any) -> None:
    """Run a test inside an event loop."""

    async def main() -> None:
        engine = FakeEngine(Config(service_wait_seconds=0.3, **settings))
        await engine.start()
        try:
            await test(engine)
        finally:
            await engine.close()

    asyncio.run(main())
