"""The URL of a server, as a setting, and the errors of a server that cannot be used."""

from __future__ import annotations

from typing import Annotated

import httpx
from pydantic import AfterValidator

from baton.errors import Unavailable


def _checked(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("a URL begins with http:// or https://")
    return url


ServerUrl = Annotated[str, AfterValidator(_checked)]
"""Empty where a command starts a server of its own."""


def unavailable(url: object, error: Exception) -> Unavailable:
    """The error of a command whose first request to a server fails, with what to do about it."""
    refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401
    if refused:
        return Unavailable(f"{url} refuses this API key: give one that it accepts with --key.")
    if isinstance(error, httpx.ConnectError):
        advice = "Start one with `baton serve`, or give the URL of one that runs."
        return Unavailable(f"No server answers at {url} ({error}). {advice}")
    return Unavailable(f"{url} does not list its models: {error}")
