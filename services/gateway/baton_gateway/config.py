"""Settings of the gateway."""

from __future__ import annotations

from pydantic import Field

from baton.settings import Settings


class Config(Settings, prefix="gateway"):
    """HTTP, limits and deadlines."""

    host: str = "127.0.0.1"
    """Address that HTTP listens on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port that HTTP listens on; 0 picks a free one."""
    api_keys: str = ""
    """Keys that clients must send as a bearer token, separated by commas; empty means open."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Largest request body."""
    max_concurrent_requests: int = Field(default=1024, ge=1)
    """Requests in flight; more are refused with 503 and Retry-After."""
    max_choices: int = Field(default=128, ge=1, le=128)
    """Largest `n` times number of prompts of one request."""
    request_timeout: float = Field(default=600.0, gt=0)
    """Seconds that one request may take."""
    hang_seconds: float = Field(default=5.0, gt=0)
    """A worker that is busy without progress for this long makes /health false."""
    metrics: bool = True
    """Serve Prometheus text at /metrics."""
    playground: bool = True
    """Serve the chat page and the fleet view at /."""
    strict_fields: bool = False
    """Refuse unknown request fields instead of ignoring them."""
