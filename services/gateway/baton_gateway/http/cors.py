"""CORS: pages of configured origins that may use this server from a browser.

https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import re
from typing import Any, Self

import msgspec
from starlette.datastructures import Headers

from baton.errors import SettingsError
from baton.setting_lists import listed
from baton_gateway.config import Config

_ALL = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\sA-Z/?#@]*")
_EXPOSED = (
    "x-request-id",
    "request-id",
    "retry-after",
    "x-should-retry",
    "x-queue-position",
    "x-estimated-ttft-ms",
    "x-cache-report",
    *(
        f"x-ratelimit-{what}-{of}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "tokens")
    ),
)
"""Response headers for clients; pages can read no others."""


class CorsPolicy(msgspec.Struct, frozen=True):
    """Permissions of pages of other origins. Without origins, none."""

    origins: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    credentials: bool = False

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the policy of the settings. Raises `SettingsError` for an invalid origin."""
        origins = tuple(_origin(origin) for origin in listed(config.allowed_origins))
        if config.allow_credentials and _ALL in origins:
            raise SettingsError(
                "--allow-credentials needs --allowed-origins by name: browsers refuse '*' there."
            )
        return cls(
            origins,
            listed(config.allowed_methods),
            listed(config.allowed_headers),
            config.allow_credentials,
        )

    def allows(self, headers: Headers) -> bool:
        """Return whether a request comes from a page that may use this server."""
        origin = headers.get("origin", "")
        return bool(origin) and (_ALL in self.origins or origin in self.origins)

    def options(self) -> dict[str, Any]:
        """Return the arguments of Starlette's `CORSMiddleware`."""
        return {
            "allow_origins": self.origins,
            "allow_methods": self.methods,
            "allow_headers": self.headers,
            "allow_credentials": self.credentials,
            "expose_headers": _EXPOSED,
        }


def _origin(text: str) -> str:
    if text == _ALL or _ORIGIN.fullmatch(text):
        return text
    raise SettingsError(
        f"--allowed-origins: '{text}' is no origin. Write scheme://host or scheme://host:port, "
        "in lower case, as a browser sends it."
    )
