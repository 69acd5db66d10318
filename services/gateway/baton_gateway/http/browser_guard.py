"""Prevents pages of other sites from using this server through a visitor's browser.

A page may send a request to any address that its visitor's browser can reach. It cannot read the
answer, but the request runs. Browsers say where a request comes from, in `Sec-Fetch-Site` and
`Origin`, which a page cannot forge.

https://www.w3.org/TR/fetch-metadata/, https://www.rfc-editor.org/rfc/rfc6454#section-7
"""

from __future__ import annotations

from starlette.datastructures import Headers

from baton.errors import InvalidRequest
from baton_gateway.http.cors import CorsPolicy

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})


def from_browser(headers: Headers) -> bool:
    """Return whether a browser sent the request."""
    return "origin" in headers or "sec-fetch-site" in headers


def check_same_origin(method: str, headers: Headers, cors: CorsPolicy) -> None:
    """Raise `InvalidRequest` (403) if a page of another origin tries to change something, unless
    `cors` allows it.

    A request with a key needs no check: a browser never adds one by itself.
    """
    if method in _SAFE_METHODS or cors.allows(headers):
        return
    site = headers.get("sec-fetch-site")
    if not (_is_own_origin(headers) if site is None else site in _OWN_SITES):
        raise InvalidRequest(
            "Pages of other sites cannot use this server from a browser. Send the request from a "
            "program, or with an API key; the operator can list the site in --allowed-origins.",
            code="cross_origin",
            status=403,
        )


def _is_own_origin(headers: Headers) -> bool:
    """Check for browsers without `Sec-Fetch-Site`: no browser sends it over plain HTTP to another
    host."""
    origin = headers.get("origin")
    if origin is None:
        return True
    return origin.partition("://")[2].lower() == headers.get("host", "").lower()
