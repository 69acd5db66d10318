"""Requests that no client waits for: work that goes on after its client or gateway has left."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request

from baton_gateway.access.rate_limits import RequestQuota
from baton_gateway.observability.request_timeline import RequestTimeline


def clientless_request(app: Starlette, name: str, path: str, quota: RequestQuota) -> Request:
    """Return a request without headers and body, as the middleware would have prepared it.

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
            "headers": [],
            "app": app,
            "state": state,
        }
    )
