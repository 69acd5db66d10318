"""Runs a generation: collects its complete output, or returns its deltas once it, or its first
token, exists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from starlette.requests import Request

from baton_gateway.engine import Engine
from baton_gateway.generation.choice import Answer, Choice
from baton_gateway.generation.output import Event, OutputDelta, Started
from baton_gateway.generation.output_queue import OutputSink
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.http.disconnect import cancel_on_disconnect, cancel_tasks


async def collect(request: Request, generation: GenerationRequest) -> Answer:
    """Return the complete output, with cancellation on disconnect."""
    engine: Engine = request.app.state.engine
    return await cancel_on_disconnect(request.receive, _gather(engine, generation))


async def collect_all(request: Request, generations: Sequence[GenerationRequest]) -> list[Answer]:
    """Return the complete outputs of generations that run concurrently, with cancellation on
    disconnect. An error of one cancels the others."""
    return await cancel_on_disconnect(
        request.receive, _gather_all(request.app.state.engine, generations)
    )


async def opened(
    request: Request, generation: GenerationRequest, sink: OutputSink | None = None
) -> tuple[Started, AsyncGenerator[OutputDelta, None]]:
    """Return a stream once its first token has arrived, with cancellation on disconnect."""
    engine: Engine = request.app.state.engine
    events = engine.generate(generation, sink)
    try:
        started, first = await cancel_on_disconnect(request.receive, _begin(events))
    except BaseException:
        await events.aclose()
        raise
    return started, _rest(first, events)


async def submitted(
    request: Request, generation: GenerationRequest
) -> tuple[Started, AsyncGenerator[OutputDelta, None]]:
    """Return a stream once the scheduler has accepted it, with cancellation on disconnect."""
    engine: Engine = request.app.state.engine
    events = engine.generate(generation)
    try:
        started = await cancel_on_disconnect(request.receive, _started(events))
    except BaseException:
        await events.aclose()
        raise
    return started, _deltas(events)


async def _gather(engine: Engine, generation: GenerationRequest) -> Answer:
    events = engine.generate(generation)
    try:
        started, first = await _begin(events)
        choices = [Choice() for _ in range(len(started.prompts) * generation.sampling.n)]
        async for delta in _rest(first, events):
            choices[delta.choice].add(delta)
        return started, choices
    finally:
        await events.aclose()


async def _gather_all(engine: Engine, generations: Sequence[GenerationRequest]) -> list[Answer]:
    tasks = [asyncio.create_task(_gather(engine, generation)) for generation in generations]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_tasks(*tasks)


async def _begin(events: AsyncGenerator[Event, None]) -> tuple[Started, OutputDelta]:
    """Wait for the first token. Errors before it still produce an HTTP status."""
    started = await _started(events)
    delta = await anext(events)
    assert isinstance(delta, OutputDelta)
    return started, delta


async def _started(events: AsyncGenerator[Event, None]) -> Started:
    started = await anext(events)
    assert isinstance(started, Started)
    return started


async def _rest(
    first: OutputDelta, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[OutputDelta, None]:
    """Yield `first`, then the remaining deltas. Closing it closes `events`."""
    try:
        yield first
        async for delta in _deltas(events):
            yield delta
    finally:
        await events.aclose()


async def _deltas(events: AsyncGenerator[Event, None]) -> AsyncGenerator[OutputDelta, None]:
    """Yield the deltas after `Started`. Closing it closes `events`."""
    try:
        async for delta in events:
            assert isinstance(delta, OutputDelta)
            yield delta
    finally:
        await events.aclose()
