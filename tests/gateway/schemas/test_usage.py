"""Token counts."""

from __future__ import annotations

import msgspec

from baton_gateway.schemas.usage import Usage


def test_the_total_is_prompt_and_completion() -> None:
    assert msgspec.to_builtins(Usage.of(2, 3, cached=1)) == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
