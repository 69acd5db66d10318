"""API keys: authentication, permitted models and limits.

Keys are compared as digests in constant time, so timing reveals neither length nor content.
"""

from __future__ import annotations

import hmac
import os
import time
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.datastructures import Headers

from baton.errors import InvalidRequest, SettingsError
from baton.logs import logger
from baton_gateway.config import Config

_OPEN = frozenset(
    {"/health", "/health/live", "/health/ready", "/livez", "/ping", "/readyz", "/", "/favicon.ico"}
)
"""Paths without authentication: probes and the page. They reveal no model or request."""
_OPEN_FOLDER = "/static/"
OPERATOR_READS = frozenset({"/metrics", "/fleet", "/fleet/stream", "/server_info"})
OPERATOR_CHANGES = frozenset(
    {
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/pause",
        "/resume",
        "/sleep",
        "/wake_up",
        "/start_profile",
        "/stop_profile",
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
    }
)
OPERATOR_PATHS = OPERATOR_READS | OPERATOR_CHANGES
"""Operator paths: they report on all tenants, or change something for all of them."""
_LOOK_SECONDS = 1.0
"""Interval in seconds of checks for changes of the key file."""

log = logger(__name__)


class KeyLimits(msgspec.Struct, frozen=True):
    """Limits of one key; 0 means no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Prompt and completion tokens together."""
    tokens_per_month: int = 0
    concurrent_choices: int = 0
    """Choices in flight; a request with n choices counts n times."""


class ApiKey(msgspec.Struct, frozen=True):
    """Permissions and limits of an API key, without the key itself."""

    name: str = ""
    tenant: str = ""
    """Tenant that is billed, owns streams and shares cached prefixes; may have several keys."""
    models: tuple[str, ...] = ()
    """Permitted models; empty permits all."""
    limits: KeyLimits = KeyLimits()
    operator: bool = False
    """Whether it opens the routes of operators."""

    def permits(self, model: str) -> bool:
        """Return whether the model is permitted."""
        return not self.models or model in self.models


_Name = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]
_Count = Annotated[int, Meta(ge=0)]


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[key]]` table of the file. Limits that are absent default to the settings."""

    name: _Name
    key: Annotated[str, Meta(min_length=8)] = ""
    sha256: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the key in hexadecimal, for files that must not contain the key itself."""
    tenant: str = ""
    models: tuple[str, ...] = ()
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    tokens_per_month: _Count | None = None
    concurrent_choices: _Count | None = None
    operator: bool = False

    def digest(self) -> bytes:
        """Return the SHA-256 of the key. Raises `ValueError` unless exactly one of the two forms is
        set."""
        if bool(self.key) == bool(self.sha256):
            raise ValueError(f"key {self.name}: give either key or sha256")
        return _digest(self.key.encode()) if self.key else bytes.fromhex(self.sha256)

    def opens(self, default: KeyLimits) -> ApiKey:
        """Return the key's permissions and limits."""
        overrides = {name: getattr(self, name) for name in KeyLimits.__struct_fields__}
        limits = {name: value for name, value in overrides.items() if value is not None}
        tenant = self.tenant or self.name
        limits_of = msgspec.structs.replace(default, **limits)
        return ApiKey(self.name, tenant, self.models, limits_of, self.operator)


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key file, in TOML."""

    key: tuple[KeyEntry, ...] = ()


Known = list[tuple[bytes, ApiKey]]
"""(SHA-256 of the key, API key) pairs."""


class ApiKeys:
    """The accepted API keys; without a setting and a file, no key is needed.

    The file is reloaded when it changes. An unreadable file leaves the keys unchanged; at start it
    raises `SettingsError`.
    """

    def __init__(self, config: Config) -> None:
        self._default = KeyLimits(
            config.requests_per_minute,
            config.tokens_per_minute,
            config.tokens_per_month,
            config.concurrent_choices,
        )
        self.anyone = ApiKey(limits=self._default)
        self._path = config.api_key_file
        self._configured = self._from_setting(config.api_key, "key")
        self._operators = self._from_setting(config.admin_api_key, "operator")
        self._file_stamp, self._next_look = (0, 0), 0.0
        self._accepted = self._configured + self._operators
        if self._path is not None:
            self._read(self._path)

    def check(self, path: str, headers: Headers) -> ApiKey:
        """Return the key of a request; `anyone` if none is needed.

        Raises 401 unless the path is public or exactly one known key is sent.
        """
        if path in _OPEN or path.startswith(_OPEN_FOLDER):
            return ApiKey()
        if not self.needed and not (self._operators and path in OPERATOR_PATHS):
            return self.anyone
        self._look()
        tokens = headers.getlist("authorization") or [
            f"Bearer {key}" for key in headers.getlist("x-api-key")
        ]
        if not tokens:
            raise InvalidRequest(
                "You didn't provide an API key. You need to provide your API key in an "
                "Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
                status=401,
            )
        key = self._find(tokens[0]) if len(tokens) == 1 else None
        if key is None:
            raise InvalidRequest("Incorrect API key provided.", code="invalid_api_key", status=401)
        return key

    def by_name(self, name: str) -> ApiKey:
        """Return the key of this name; `anyone` if it was removed."""
        self._look()
        return next((key for _, key in self._accepted if key.name == name), self.anyone)

    def current(self, name: str) -> ApiKey | None:
        """Return the current key of this name; `anyone` if none is needed, None if it was
        removed."""
        if not self.needed:
            return self.anyone
        self._look()
        return next((opened for _, opened in self._accepted if opened.name == name), None)

    @property
    def needed(self) -> bool:
        """Whether clients need a key."""
        return bool(self._configured) or self._path is not None

    def _find(self, header: str) -> ApiKey | None:
        scheme, _, key = header.partition(" ")
        digest = _digest(key.encode("latin-1", "replace"))
        # Compare all keys, so that timing does not reveal which one matches.
        matches = [
            opened for accepted, opened in self._accepted if hmac.compare_digest(digest, accepted)
        ]
        return matches[0] if scheme.lower() == "bearer" and matches else None

    def _from_setting(self, setting: str, kind: str) -> Known:
        """Keys are numbered in the order of the setting: "key-1" is the first."""
        keys = [key.strip().encode() for key in setting.split(",") if key.strip()]
        names = (f"{kind}-{number}" for number in range(1, len(keys) + 1))
        return [
            (_digest(key), ApiKey(name, name, (), self._default, kind == "operator"))
            for key, name in zip(keys, names, strict=True)
        ]

    def _look(self) -> None:
        """Reload the file if it has changed."""
        now = time.monotonic()
        if self._path is None or now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        try:
            if _stamp(self._path) != self._file_stamp:
                self._read(self._path)
                log.info("read %d keys", len(self._accepted))
        except (SettingsError, OSError) as error:
            log.error("the keys stay as they were: %s", error)

    def _read(self, path: Path) -> None:
        try:
            self._file_stamp = _stamp(path)
            entries = msgspec.toml.decode(path.read_bytes(), type=KeyFile).key
            keys = [(entry.digest(), entry.opens(self._default)) for entry in entries]
        except (OSError, ValueError) as error:
            raise SettingsError(f"The file of API keys cannot be used: {error}") from error
        if len({key.name for _, key in keys}) < len(keys):
            raise SettingsError("Two API keys have the same name. Give each its own.")
        self._accepted = self._configured + self._operators + keys


def _stamp(path: Path) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
