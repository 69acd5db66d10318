"""GLM-4."""

from __future__ import annotations

from typing import Any


def test_half_of_each_head_turns_channel_by_channel(spec_of: Any) -> None:
    spec = spec_of("Glm4ForCausalLM", num_key_value_heads=2)
    mixer, _ = spec.layers[0]
    assert mixer.head_dim == 128 and mixer.rope.dim == 64 and mixer.rope.interleaved
    assert mixer.bias and not mixer.output_bias and spec.style == "sandwich"
