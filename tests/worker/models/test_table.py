"""The table of docs/models/supported.md is that of today."""

from __future__ import annotations

import pytest

from tests.support.models_table import (
    PAGE,
    page,
    spec_of,
    traits,
)


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run python -m tests.support.models_table --write"
    )


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        (
            "Gemma2ForCausalLM",
            {"norms by 1 + w", "norms around each half", "window in 2 of 3 layers"},
        ),
        ("BaichuanForCausalLM", {"ALiBi", "NormHead", "fused tensors"}),
        ("DeciLMForCausalLM", {"layers without attention or ffn", "head counts differ by layer"}),
        ("LLaMAForCausalLM", set()),
    ],
)
def test_traits_are_what_differs_from_llama(architecture: str, expected: set[str]) -> None:
    found = set(traits(spec_of(architecture)))
    assert expected <= found and (expected or not found)
