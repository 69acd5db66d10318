"""Settings of the media preprocessor."""

from __future__ import annotations

from baton.settings import Settings


class Config(Settings, prefix="mm-preprocess"):
    """Where the service listens."""

    bind: str = ""
    """Address to bind; empty means a socket in the run directory."""
    advertise: str = ""
    """Address announced to Redis; empty means the bound one."""
