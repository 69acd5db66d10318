"""Settings of the gateway."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from baton.settings import Settings
from baton_gateway.enabled import check_setting


class Config(Settings, prefix="gateway"):
    """HTTP, limits and deadlines."""

    host: str = "127.0.0.1"
    """Address that HTTP listens on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port that HTTP listens on; 0 picks a free one."""
    allowed_hosts: str = ""
    """Host names that requests may carry, separated by commas, or *; empty means any, or, when
    HTTP listens on a loopback address, only names of this machine."""
    api_keys: str = Field(default="", repr=False)
    """Keys that clients must send as a bearer token, separated by commas; empty means open."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Largest request body."""
    max_concurrent_requests: int = Field(default=1024, ge=1)
    """Requests in flight; more are refused with 503 and Retry-After."""
    max_choices: int = Field(default=128, ge=1, le=128)
    """Largest `n` times number of prompts of one request."""
    request_timeout: float = Field(default=600.0, gt=0)
    """Seconds that one request may take."""
    deadline_ms: int = Field(default=0, ge=0, le=86_400_000)
    """Milliseconds that a request has if it sends no X-Deadline-Ms; 0 means no deadline."""
    patience: float = Field(default=2.0, ge=0)
    """Seconds that a request waits for a missing tokenizer, scheduler or worker before a 503."""
    stall_seconds: float = Field(default=30.0, gt=0)
    """A client that reads nothing of its stream for this long is cut off."""
    keep_alive_seconds: float = Field(default=15.0, gt=0)
    """A stream with nothing to say sends a comment this often, so that proxies keep it open."""
    hang_seconds: float = Field(default=5.0, gt=0)
    """A worker that is busy without progress for this long makes /health false."""
    metrics: bool = True
    """Serve Prometheus text at /metrics."""
    playground: bool = True
    """Serve the chat page and the fleet view at /."""
    processors: Annotated[str, AfterValidator(check_setting)] = ""
    """Logits processors that clients may name in `processors`, separated by commas."""
    strict_fields: bool = False
    """Refuse unknown request fields instead of ignoring them."""
