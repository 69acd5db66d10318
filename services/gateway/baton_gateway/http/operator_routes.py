"""Operator routes: the state of the whole system, and changes that affect all clients.

With API keys they need an operator's key, since they report on all tenants. Without keys, reading
is open, and changes are accepted from programs of this machine only, never from a page in a
browser.
"""

from __future__ import annotations

from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

from baton.errors import InvalidRequest
from baton_gateway.access.api_keys import OPERATOR_CHANGES, OPERATOR_PATHS, ApiKey
from baton_gateway.http.browser_guard import from_browser

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
"""Headers of proxies: if present, the peer's address is not the client's."""


def check_operator(scope: Scope, headers: Headers, key: ApiKey, *, keys_in_use: bool) -> None:
    """Raise `InvalidRequest` (403) unless the request may use an operator route."""
    path = scope["path"]
    if path not in OPERATOR_PATHS or key.operator:
        return
    if keys_in_use:
        raise _forbidden("This route needs an operator's key: one of BATON_GATEWAY_ADMIN_API_KEY.")
    if path in OPERATOR_CHANGES and (from_browser(headers) or not _is_local(scope, headers)):
        raise _forbidden(
            "Without keys this route answers programs of its own machine only. The operator can "
            "set BATON_GATEWAY_ADMIN_API_KEY."
        )


def _is_local(scope: Scope, headers: Headers) -> bool:
    host = (scope.get("client") or ("",))[0]
    if any(name in headers for name in _FORWARDED):
        return False
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _forbidden(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="operator_only", status=403)
