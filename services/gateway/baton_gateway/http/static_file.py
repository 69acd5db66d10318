"""Files for browsers: with an entity tag, and a content security policy that allows no other
host."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; media-src blob:"
)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Media types by suffix."""


@cache
def _load(package: str, name: str) -> tuple[bytes, str]:
    """Return a file's content and its entity tag."""
    content = files(package).joinpath(name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


def static_file(request: Request, package: str, name: str, policy: str = POLICY) -> Response:
    """Return a file of a package, or 304 when the browser's copy is current.

    Browsers always revalidate. `name` must not come from the client unchecked.
    """
    content, tag = _load(package, name)
    headers = {
        "etag": tag,
        "cache-control": "no-cache",
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)
