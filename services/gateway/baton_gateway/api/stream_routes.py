"""Streaming APIs: every difference between two of them is a field here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from baton.registry import Registry
from baton_gateway.engine import Engine
from baton_gateway.generation.request import GenerationRequest
from baton_gateway.schemas.sampled_request import SampledRequest
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.writer import Writer

B = TypeVar("B", bound=SampledRequest)


@dataclass(frozen=True, slots=True)
class StreamRoute(Generic[B]):
    """One streaming API."""

    name: str
    """Name in `ROUTES`; the journal stores it with a durable stream."""
    id_prefix: str
    """Prefix of response ids, with its separator."""
    schema: type[BaseModel]
    """Request body."""
    num_prompts: Callable[[B], int]
    generation: Callable[[Request, B, Head], GenerationRequest]
    """Converts a body to a generation request."""
    writer: Callable[[Engine, B, Head], Awaitable[Writer]]
    """Creates the writer of a response."""
    convert: Callable[[Any], B] = lambda body: body
    """Converts a body of that schema to one that the other functions accept."""
    named_events: bool = False
    """Events have names and there is no `[DONE]`; such streams are not durable."""


ROUTES = Registry(
    "stream_routes",
    {
        "chat": "baton_gateway.api.chat:ROUTE",
        "completions": "baton_gateway.api.completions:ROUTE",
        "messages": "baton_gateway.api.anthropic.messages:ROUTE",
        "responses": "baton_gateway.api.responses.route:ROUTE",
    },
)


def route_of(name: str) -> StreamRoute[SampledRequest]:
    """Return a route by its name. Raises `SettingsError` for an unknown one."""
    route: StreamRoute[SampledRequest] = ROUTES.load(name)
    return route
