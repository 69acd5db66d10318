"""Settings of the scheduler."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from baton.settings import Settings


class Config(Settings, prefix="scheduler"):
    """Where the service listens, budgets and bounds."""

    bind: str = ""
    """Address for gateways; empty means a socket in the run directory."""
    bind_fleet: str = ""
    """Address for workers; empty means a socket in the run directory."""
    max_batch_tokens: int = Field(default=2048, ge=1)
    """Most new tokens in one step of one worker."""
    max_waiting: int = Field(default=4096, ge=1)
    """Sequences that may wait; more are refused with 503 and Retry-After."""
    max_waiting_tokens: int = Field(default=8_000_000, ge=1)
    """Prompt tokens that may wait."""
    depth: int = Field(default=2, ge=1, le=4)
    """Plans in flight per worker: 2 means one runs while the next waits for it."""
    hang_seconds: float = Field(default=5.0, gt=0)
    """A worker that is busy without progress for this long is taken out and its work restarted."""
    record: Path | None = None
    """Write every event to this file; `baton replay` reproduces each decision from it."""
