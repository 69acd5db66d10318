"""Bearer keys. Compared as digests, so that neither length nor content shows in the time."""

from __future__ import annotations

import hmac
from hashlib import sha256

from starlette.datastructures import Headers

from baton.errors import InvalidRequest

_OPEN = frozenset(
    {"/health", "/health/live", "/health/ready", "/livez", "/readyz", "/", "/favicon.ico"}
)
"""Probes, and the page in which a person types the key. Neither shows a model or a request."""
_OPEN_FOLDER = "/static/"


class Keys:
    """The keys that may enter; without any, everybody may."""

    def __init__(self, setting: str) -> None:
        self._digests = [_digest(k.strip().encode()) for k in setting.split(",") if k.strip()]

    def check(self, path: str, headers: Headers) -> str:
        """Name of the key that the request carries: "key-1" is the first of the setting.

        Empty where no key is needed. Raises 401 unless the path is open to all or a known key
        is sent.
        """
        if not self._digests or path in _OPEN or path.startswith(_OPEN_FOLDER):
            return ""
        given = headers.getlist("authorization")
        if not given:
            raise InvalidRequest(
                "You didn't provide an API key. You need to provide your API key in an "
                "Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
                status=401,
            )
        number = self._number(given[0]) if len(given) == 1 else 0
        if not number:
            raise InvalidRequest("Incorrect API key provided.", code="invalid_api_key", status=401)
        return f"key-{number}"

    def _number(self, header: str) -> int:
        """Which key it is, from 1; 0 when none."""
        scheme, _, key = header.partition(" ")
        digest = _digest(key.encode("latin-1", "replace"))
        # Every key is compared, whichever matches.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        known = scheme.lower() == "bearer" and any(matches)
        return 1 + matches.index(True) if known else 0


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
