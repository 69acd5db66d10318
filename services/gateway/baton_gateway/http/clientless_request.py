"""Requests that no HTTP client waits for: work that goes on after its client or gateway has left,
and what the messages of a WebSocket ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import Message

from baton_gateway.access.rate_limits import RequestQuota
from baton_gateway.observability.request_timeline import RequestTimeline


def clientless_request(
    app: Starlette,
    name: str,
    path: str,
    quota: RequestQuota,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Request:
    """Return a request without a body, as the middleware would have prepared it.

    Args:
        name: number that its ids share.
        quota: of the API key that it is charged to.
    """
    number = f"req_{name}"
    state = {"request_id": number, "budget": quota, "account": RequestTimeline(number, path)}
    return Request(
        {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": list(headers),
            "app": app,
            "state": state,
        },
        _never,
    )


async def _never() -> Message:
    """Nobody disconnects: who started the work cancels it."""
    await asyncio.Event().wait()
    raise AssertionError("a request without a client never has it")
