"""Serves the page at `/`: a chat playground and a live view of the fleet.

It has no build step and loads nothing from other hosts, as its content security policy enforces.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from baton.errors import NotFound

POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)
_TYPES = {
    "page.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "mark.svg": "image/svg+xml",
}
"""The files that are served."""

router = APIRouter(include_in_schema=False)


@cache
def _load(name: str) -> tuple[bytes, str]:
    """Return a file's content and its entity tag. Raises `NotFound` for a name that is not
    listed."""
    if name not in _TYPES:
        raise NotFound("There is no such file.")
    content = files("baton_gateway").joinpath("static", name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


def _answer(request: Request, name: str) -> Response:
    """Return the file, or 304 when the browser's copy is current. Browsers always revalidate."""
    content, tag = _load(name)
    headers = {
        "etag": tag,
        "cache-control": "no-cache",
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name], headers=headers)


@router.get("/")
async def index(request: Request) -> Response:
    """Return the page."""
    return _answer(request, "page.html")


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """Return a file that the page refers to."""
    return _answer(request, name)
