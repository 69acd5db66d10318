"""Settings of the tokenizer."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from baton.settings import Settings


class Config(Settings, prefix="tokenizer"):
    """Where the service listens and what it bounds."""

    bind: str = ""
    """Address to bind; empty means a socket in the run directory."""
    advertise: str = ""
    """Address announced to Redis; empty means the bound one."""
    chat_template: Path | None = None
    """Jinja file that replaces the checkpoint's chat template."""
    max_decode_states: int = Field(default=16384, ge=1)
    """Sequences with decode state; the longest unused is dropped and rebuilt from its log."""
    max_encode_tokens: int = Field(default=1_048_576, ge=1)
    """Longest text that is encoded, in tokens, when a request names no limit of its own."""
    max_queued_requests: int = Field(default=1024, ge=1)
    """Encode requests that may wait; more are refused as overload."""
