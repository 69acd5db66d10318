"""Models in the format of Anthropic's API.

https://docs.anthropic.com/en/api/models-list
"""

from __future__ import annotations

from typing import Literal

import msgspec


class AnthropicModel(msgspec.Struct, tag_field="type", tag="model"):
    """One model."""

    id: str
    display_name: str
    created_at: str
    """RFC 3339."""
    max_input_tokens: int | None
    """Context length; null until a worker has reported it."""
    max_tokens: int | None
    """Maximum tokens of an answer."""
    lifecycle: Literal["active"] = "active"
    capabilities: None = None


class AnthropicModels(msgspec.Struct, kw_only=True):
    """Response of /v1/models to clients of Anthropic's API."""

    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
