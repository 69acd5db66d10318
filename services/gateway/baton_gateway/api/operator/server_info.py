"""GET /server_info, for operators: the version and the active settings."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton import __version__
from baton_gateway.api.documentation.description import describe
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.http.json_response import json_response

router = APIRouter()
HIDDEN = "***"
"""Replaces a secret."""


class ServerInfo(msgspec.Struct):
    """Response."""

    version: str
    config: dict[str, Any]
    """Settings of this gateway by name; a secret is `HIDDEN`."""
    workers: list[Any]
    """As in /fleet."""


@router.get("/server_info")
@describe(answer=ServerInfo)
async def server_info(request: Request) -> Response:
    """Return the version, the settings of this gateway, and the workers."""
    engine: Engine = request.app.state.engine
    config = shown(request.app.state.config)
    return json_response(ServerInfo(__version__, config, engine.snapshot()["workers"]))


def shown(config: Config) -> dict[str, Any]:
    """Settings as JSON values, without secrets: neither fields that `repr` omits, nor addresses
    that may contain a password."""
    values = config.model_dump(mode="json")
    secret = {name for name, field in Config.model_fields.items() if not field.repr}
    return {
        name: HIDDEN if value and (name in secret or name.endswith("_url")) else value
        for name, value in values.items()
    }
