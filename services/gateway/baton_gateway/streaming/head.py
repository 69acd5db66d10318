"""Fields that every part of a response repeats."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from baton import __version__
from baton_gateway.http.middleware import id_of

FINGERPRINT = f"baton-{__version__}"


@dataclass(frozen=True, slots=True)
class Head:
    """Identity of a response."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str

    @classmethod
    def of(cls, request: Request, prefix: str, model: str) -> Head:
        """Create a head whose id shares its number with the request id."""
        return cls(f"{prefix}{id_of(request)[4:]}", int(time.time()), model)

    def fields(self) -> dict[str, Any]:
        """Return the common fields of a response."""
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }
