"""Models as Anthropic's own types."""

from __future__ import annotations

import msgspec
from anthropic.types import ModelInfo

from baton_gateway.schemas.anthropic.models import AnthropicModel, AnthropicModels


def test_anthropics_types_take_them() -> None:
    one = AnthropicModel("m", "m", "2026-01-01T00:00:00+00:00", 4096, 4096)
    page = AnthropicModels(data=[one], first_id="m", last_id="m")
    [found] = msgspec.to_builtins(page)["data"]
    assert ModelInfo.model_validate(found).max_input_tokens == 4096
    assert found["type"] == "model" and page.has_more is False
