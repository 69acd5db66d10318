"""JSON responses of msgspec structs."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


def json_response(value: Any) -> Response:
    """Return a value that msgspec can encode as a response."""
    return Response(msgspec.json.encode(value), media_type="application/json")
