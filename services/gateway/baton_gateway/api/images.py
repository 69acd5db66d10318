"""POST /v1/images/generations: refused, since no supported model generates images."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton_gateway.api.documentation.description import describe
from baton_gateway.http.errors import ErrorResponse

router = APIRouter()


@router.post("/v1/images/generations", include_in_schema=False)
@describe(answer=ErrorResponse)
async def generations() -> Response:
    """Refuse to generate images."""
    raise InvalidRequest(
        "Images are not generated: there is no backend for diffusion models. Send pictures that "
        "a model shall see to /v1/chat/completions.",
        code="unsupported_endpoint",
        status=501,
    )
