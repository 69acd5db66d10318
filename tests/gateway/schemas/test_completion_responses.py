"""Completions parse as OpenAI's own types."""

from __future__ import annotations

import msgspec
from openai.types import Completion as OpenAICompletion

from baton_gateway.schemas.completion_responses import Completion, CompletionChoice
from baton_gateway.schemas.usage import Usage

HEAD = {"id": "x", "created": 1, "model": "m", "system_fingerprint": "f"}


def test_openais_models_take_them() -> None:
    choice = CompletionChoice(0, "a", "stop")
    completion = Completion(**HEAD, choices=[choice], usage=Usage.of(2, 3))
    assert OpenAICompletion.model_validate_json(msgspec.json.encode(completion), strict=True)
