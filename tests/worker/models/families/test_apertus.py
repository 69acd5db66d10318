"""Apertus."""

from __future__ import annotations

from typing import Any


def test_a_config_without_a_rope_has_that_of_its_class(spec_of: Any) -> None:
    mixer, _ = spec_of("ApertusForCausalLM").layers[0]
    assert mixer.rope.kind == "llama3" and mixer.rope.base == 12e6
    assert dict(mixer.rope.parameters)["original_max_position_embeddings"] == 8192


def test_the_head_may_leave_out_codes(spec_of: Any) -> None:
    spec = spec_of("Apertus1p5TextForCausalLM", output_vocab_size=40)
    assert spec.head.unsaid == spec.vocab - 40
    assert spec_of("Apertus1p5TextForCausalLM").head.unsaid == 0
