"""Requests that no client waits for."""

from __future__ import annotations

from starlette.applications import Starlette

from baton_gateway.access.api_keys import ApiKey
from baton_gateway.access.rate_limits import RateLimiter
from baton_gateway.http.clientless_request import clientless_request
from baton_gateway.http.middleware import id_of, quota_of, tenant_of, timeline_of


def test_it_has_what_the_middleware_gives() -> None:
    quota = RateLimiter().quota(ApiKey("key-1", "me"))
    app = Starlette()
    request = clientless_request(app, "0f", "/v1/responses", quota)
    assert (id_of(request), tenant_of(request), request.app) == ("req_0f", "me", app)
    assert quota_of(request) is quota and timeline_of(request).path == "/v1/responses"
    assert not request.headers and not request.query_params
    headed = clientless_request(app, "0f", "/v1/realtime", quota, [(b"x-a", b"b")])
    assert dict(headed.headers) == {"x-a": "b"}
