"""GET /openapi.json and /docs: the OpenAPI document, and Swagger UI to browse and try the API.

Swagger UI comes from the package `fastapi_swagger`, so the page loads nothing from other hosts.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import NotFound
from baton_gateway.api import ROUTERS
from baton_gateway.api.documentation.openapi import openapi
from baton_gateway.http.static_file import POLICY, static_file

router = APIRouter(include_in_schema=False)
_POLICY = f"{POLICY}; img-src 'self' data:; style-src 'self' 'unsafe-inline'"
"""Swagger UI draws its icons from data URLs and sets styles inline."""
_PACKAGES = {
    "docs.js": "baton_gateway.static",
    "swagger-ui.css": "fastapi_swagger.resources",
    "swagger-ui-bundle.js": "fastapi_swagger.resources",
}
"""File of the page -> the package that has it."""


@router.get("/openapi.json")
async def document() -> Response:
    """Return the OpenAPI document of this gateway."""
    content = msgspec.json.encode(openapi(route for router in ROUTERS for route in router.routes))
    return Response(content, media_type="application/json")


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Return the page."""
    return static_file(request, "baton_gateway.static", "docs.html", _POLICY)


@router.get("/docs/{name}")
async def asset(request: Request, name: str) -> Response:
    """Return a file that the page loads."""
    if name not in _PACKAGES:
        raise NotFound("There is no such file.")
    return static_file(request, _PACKAGES[name], name, _POLICY)
