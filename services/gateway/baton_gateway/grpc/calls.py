"""Admission of calls: the API key, limits, metrics and errors of HTTP requests, applied to gRPC."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote

import grpc
from grpc.aio import ServicerContext as Context
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request

from baton.errors import BatonError, ServerFault
from baton.logs import logger, request_id
from baton_gateway.access.api_keys import ApiKeys
from baton_gateway.access.rate_limits import RateLimiter
from baton_gateway.engine import Engine
from baton_gateway.http.clientless_request import clientless_request
from baton_gateway.http.errors import FAULT
from baton_gateway.http.middleware import quota_of, timeline_of
from baton_gateway.http.operator_routes import check_operator

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""HTTP status of an error -> gRPC status."""
_GONE = "499"

log = logger(__name__)


class Calls:
    """Turns calls into requests of the application."""

    def __init__(self, app: Starlette, keys: ApiKeys, limiter: RateLimiter) -> None:
        self._app, self._keys, self._limiter = app, keys, limiter

    @asynccontextmanager
    async def admitted(
        self, context: Context, method: str, path: str, *, limited: bool = True
    ) -> AsyncIterator[Request]:
        """Yield the request of a call. A `BatonError` inside ends the call with its status.

        Args:
            path: of the equivalent HTTP route, whose permissions the call needs.
            limited: charge it as a request of its key, like a POST.
        """
        engine: Engine = self._app.state.engine
        name, status = uuid.uuid4().hex, "0"
        token = request_id.set(f"req_{name}")
        request: Request | None = None
        try:
            request = self._request(context, name, path)
            await context.send_initial_metadata((("x-request-id", f"req_{name}"),))
            if limited:
                engine.timelines.keep(timeline_of(request), quota_of(request).key.tenant)
                await quota_of(request).request()
            yield request
            status = "200"
        except BatonError as error:
            status = str(error.status)
            await refuse(context, error)
        except (asyncio.CancelledError, GeneratorExit):
            status = _GONE
            raise
        except Exception:
            log.exception("unhandled error")
            status = "500"
            await refuse(context, ServerFault(FAULT, code="internal_error"))
        finally:
            request_id.reset(token)
            engine.metrics.requests.labels(method, status).inc()
            if request is not None:
                timeline_of(request).close(status)

    def _request(self, context: Context, name: str, path: str) -> Request:
        metadata = context.invocation_metadata() or ()
        headers = Headers(raw=[(k.encode(), v.encode()) for k, v in metadata if isinstance(v, str)])
        key = self._keys.check(path, headers)
        peer = {"path": path, "client": (_host(context.peer()), 0)}
        check_operator(peer, headers, key, keys_in_use=self._keys.needed)
        quota = self._limiter.quota(key)
        return clientless_request(self._app, name, path, quota, headers.raw)


async def refuse(context: Context, error: BatonError) -> None:
    """End a call with an error: the message, and code and field as metadata."""
    if error.status >= 500 and error.status != 501:
        log.warning("%s: %s", error.code, error.message)
    facts = {"error-type": error.type, "error-code": error.code, "error-param": error.param}
    if error.retry_after is not None:
        facts["retry-after"] = str(error.retry_after)
    metadata = tuple((name, value) for name, value in facts.items() if value)
    await context.abort(_CODES.get(error.status, grpc.StatusCode.INTERNAL), error.message, metadata)


def _host(peer: str) -> str:
    """Address of a peer, as "ipv4:127.0.0.1:50000" or "ipv6:[::1]:50000"; empty for others."""
    kind, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else ""
