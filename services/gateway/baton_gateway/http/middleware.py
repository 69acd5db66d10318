"""Middleware around every request: request id, API key, rate limits, error fallback, metrics."""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.errors import BatonError, ServerFault
from baton.logs import logger, request_id
from baton_gateway.access.api_keys import ApiKey, ApiKeys
from baton_gateway.access.rate_limits import RateLimiter, RequestQuota
from baton_gateway.http.allowed_hosts import AllowedHosts
from baton_gateway.http.browser_guard import check_same_origin
from baton_gateway.http.cors import CorsPolicy
from baton_gateway.http.disconnect import ClientDisconnected
from baton_gateway.http.error_formats import encoder_of, is_messages
from baton_gateway.http.errors import FAULT, respond
from baton_gateway.http.operator_routes import check_operator
from baton_gateway.http.websocket.handshake import METHOD, with_key
from baton_gateway.observability.metrics import Metrics
from baton_gateway.observability.request_timeline import RequestTimeline
from baton_gateway.observability.timeline_store import TimelineStore

_GONE = "499"
"""nginx's status for a request that the client closed."""
_SWITCHED = 101
"""Status of a WebSocket that is accepted."""
_LONGEST_PATH = 100
TRUSTED_KEY = "baton.trusted_key"
"""Scope entry with the `ApiKey` of a request that the gateway itself sends for a batch."""

log = logger(__name__)


class RequestMiddleware:
    """ASGI middleware. Streams pass through unbuffered. A WebSocket is checked like a request; its
    messages are charged by its session."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: AllowedHosts,
        keys: ApiKeys,
        limiter: RateLimiter,
        metrics: Metrics,
        ledger: TimelineStore,
        cors: CorsPolicy,
    ) -> None:
        self._app, self._hosts, self._keys = app, hosts, keys
        self._limiter, self._metrics, self._ledger = limiter, metrics, ledger
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        tracker = ResponseTracker(send, scope["path"])
        token = request_id.set(tracker.id)
        scope.setdefault("state", {})["request_id"] = tracker.id
        try:
            await self._serve(scope, receive, tracker)
        finally:
            request_id.reset(token)
            route = getattr(scope.get("route"), "path", "unknown")
            self._metrics.requests.labels(route, tracker.status).inc()
            tracker.timeline.close(tracker.status)

    async def _serve(self, scope: Scope, receive: Receive, tracker: ResponseTracker) -> None:
        try:
            budget = self._limiter.quota(scope.get(TRUSTED_KEY) or self._checked_key(scope))
            scope["state"]["quota"], tracker.headers = budget, budget.headers
            scope["state"]["timeline"] = tracker.timeline
            if scope.get("method") == "POST":
                self._ledger.keep(tracker.timeline, budget.key.tenant)
                await budget.request()
            await self._app(scope, receive, tracker.send)
        except ClientDisconnected:
            log.info("the client of %s left", scope["path"][:_LONGEST_PATH])
            tracker.status = _GONE
        except BatonError as error:
            await tracker.refuse(scope, receive, error)
        except Exception:
            log.exception("unhandled error")
            await tracker.refuse(scope, receive, ServerFault(FAULT, code="internal_error"))

    def _checked_key(self, scope: Scope) -> ApiKey:
        """Return the key of an external request. Raises `InvalidRequest`."""
        headers = Headers(scope=scope)
        if scope["type"] == "websocket":
            headers = with_key(headers)
        self._hosts.check(headers)
        key = self._keys.check(scope["path"], headers)
        if not self._keys.needed:
            check_same_origin(scope.get("method", METHOD), headers, self._cors)
        check_operator(scope, headers, key, keys_in_use=self._keys.needed)
        return key


class ResponseTracker:
    """Adds headers to one response and records its status."""

    def __init__(self, send: Send, path: str) -> None:
        self.id = f"req_{uuid.uuid4().hex}"
        self._ids = ("x-request-id", "request-id") if is_messages(path) else ("x-request-id",)
        """Headers with the request id."""
        self.timeline = RequestTimeline(self.id, path[:_LONGEST_PATH])
        self.status = "0"
        self.headers: dict[str, str] = {}
        """Additional response headers."""
        self._send = send

    async def send(self, message: Message) -> None:
        """Forward a message to the server."""
        kind = message["type"].removeprefix("websocket.")
        if kind in {"http.response.start", "accept"}:
            self.status = str(message.get("status", _SWITCHED))
            MutableHeaders(scope=message).update(
                {**dict.fromkeys(self._ids, self.id), **self.headers}
            )
        started_at = self.timeline.now()
        await self._send(message)
        self.timeline.sent(started_at)

    async def refuse(self, scope: Scope, receive: Receive, error: BatonError) -> None:
        """Respond with an error, unless the response has begun."""
        if self.status == "0":
            await respond(error, encoder_of(scope))(scope, receive, self.send)


def id_of(request: Request) -> str:
    """Return the request id."""
    return str(request.scope["state"]["request_id"])


def quota_of(request: Request) -> RequestQuota:
    """Return the quota of the request's API key."""
    budget: RequestQuota = request.scope["state"]["quota"]
    return budget


def timeline_of(request: Request) -> RequestTimeline:
    """Return the timeline of the request."""
    timeline: RequestTimeline = request.scope["state"]["timeline"]
    return timeline


def tenant_of(request: Request) -> str:
    """Return the tenant of the request's API key; empty when no key is needed."""
    return quota_of(request).key.tenant
