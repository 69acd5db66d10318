"""Continues a recorded run from its journal: the request is parsed again, the token logs are
kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from starlette.applications import Starlette
from starlette.requests import Request

from baton.protocol.packed_tokens import PackedTokens
from baton.protocol.token_columns import unpack
from baton_gateway.api.stream_routes import route_of
from baton_gateway.durable.journal import StreamRecord
from baton_gateway.durable.streams import Continue
from baton_gateway.engine import Engine
from baton_gateway.generation.output import Event, Started
from baton_gateway.generation.request import GenerationRequest, PriorOutput
from baton_gateway.http.body import build
from baton_gateway.http.body_reader import BodyReader
from baton_gateway.schemas.sampled_request import SampledRequest
from baton_gateway.schemas.sampling_defaults import with_defaults
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.writer import Writer


def continuation(request: Request) -> Continue:
    """Return a function that continues the run of a record, on behalf of `request`."""

    async def go_on(
        record: StreamRecord, prior: tuple[PriorOutput, ...]
    ) -> AsyncGenerator[Event, None]:
        engine: Engine = request.app.state.engine
        events = engine.generate(await _continued(request, record, prior))
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    return go_on


def head_of(record: StreamRecord) -> Head:
    """Return the identity of its response."""
    return Head(record.id, record.created, record.model)


def started_of(record: StreamRecord) -> Started:
    """Return its first event."""
    return Started(tuple(map(PackedTokens, record.prompts)), record.starts)


async def writer_of(app: Starlette, record: StreamRecord) -> Writer:
    """Return the writer of its response."""
    body = await _body(app, record)
    return await route_of(record.route).writer(app.state.engine, body, head_of(record))


async def _body(app: Starlette, record: StreamRecord) -> SampledRequest:
    """Parse the recorded body; a large one outside of the event loop."""
    bodies: BodyReader = app.state.bodies
    route = route_of(record.route)
    body = route.convert(build(await bodies.parse(record.body), route.schema))
    return with_defaults(body, record.sampling_defaults)


async def _continued(
    request: Request, record: StreamRecord, prior: tuple[PriorOutput, ...]
) -> GenerationRequest:
    body = await _body(request.app, record)
    generation = route_of(record.route).generation(request, body, head_of(record))
    return replace(
        generation,
        tools=generation.tools and replace(generation.tools, starts=record.starts),
        prompts=tuple(tuple(unpack(prompt)) for prompt in record.prompts),
        sampling=replace(generation.sampling, seed=record.seed),
        identity=replace(generation.identity, tenant=record.tenant),
        prior_outputs=prior,
        resumed=True,
        adapter=record.adapter,
    )
