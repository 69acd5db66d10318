"""Serves the page at `/`: a chat playground and a live view of the fleet.

It has no build step and loads nothing from other hosts, as its content security policy enforces.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from baton.errors import NotFound
from baton_gateway.http.static_file import static_file

_FILES = frozenset(
    {
        "page.html",
        "page.css",
        "page.js",
        "attachments.js",
        "clips.js",
        "pictures.js",
        "sounds.js",
        "tools.js",
        "mark.svg",
    }
)
"""The files that are served."""

router = APIRouter(include_in_schema=False)


def _answer(request: Request, name: str) -> Response:
    """Return a file. Raises `NotFound` for a name that is not listed."""
    if name not in _FILES:
        raise NotFound("There is no such file.")
    return static_file(request, "baton_gateway.static", name)


@router.head("/")
@router.get("/")
async def index(request: Request) -> Response:
    """Return the page."""
    return _answer(request, "page.html")


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """Return a file that the page refers to."""
    return _answer(request, name)
