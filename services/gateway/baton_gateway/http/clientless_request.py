"""Requests without an HTTP client: work that continues after its client or gateway has left, and
messages of a WebSocket."""

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
    """Return a request without a body, prepared like the middleware does.

    Args:
        name: number that its ids contain.
        quota: of the charged API key.
    """
    number = f"req_{name}"
    state = {"request_id": number, "quota": quota, "timeline": RequestTimeline(number, path)}
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
    """Never reports a disconnect: the caller cancels the work."""
    await asyncio.Event().wait()
    raise AssertionError("a request without a client never has it")
