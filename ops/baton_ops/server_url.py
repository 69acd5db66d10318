"""The URL of a server, as a setting."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def _checked(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("a URL begins with http:// or https://")
    return url


ServerUrl = Annotated[str, AfterValidator(_checked)]
"""Empty where a command starts a server of its own."""
