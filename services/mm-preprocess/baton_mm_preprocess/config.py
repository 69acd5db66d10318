"""Settings of the media preprocessor."""

from __future__ import annotations

from pydantic import Field

from baton.settings import Settings


class Config(Settings, prefix="mm-preprocess"):
    """Where the service listens, and what it takes from strangers."""

    bind: str = ""
    """Address to bind; empty means a socket in the run directory."""
    advertise: str = ""
    """Address announced to Redis; empty means the bound one."""
    decode_processes: int = Field(default=2, ge=1, le=256)
    """Media that are decoded at one time, each in a process of its own."""
    max_queued_requests: int = Field(default=256, ge=1)
    """Requests that wait for one of these; more are refused with 503 and Retry-After."""
    max_items: int = Field(default=16, ge=1)
    """Media parts of one request."""
    max_media_bytes: int = Field(default=20 * 1024 * 1024, ge=1024, le=32 * 1024 * 1024)
    """Largest file of one media part."""
    max_image_pixels: int = Field(default=50_000_000, ge=1)
    """Most pixels of an image, before it is made smaller."""
    media_seconds: float = Field(default=10.0, gt=0)
    """Wall time for one media part."""
    media_memory: int = Field(default=384 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Bytes of address space that one part may take in its process, beside what its libraries
    take."""
