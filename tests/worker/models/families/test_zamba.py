"""Configs of Zamba2: which layers share which block."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec import SharedAttention, SharedGlu, StateSpace

FIELDS = {"n_mamba_heads": 8, "num_mem_blocks": 2, "adapter_rank": 4}
KINDS = ["mamba", "hybrid", "linear_attention", "hybrid", "hybrid"]


def test_blocks_take_turns(spec_of: Any) -> None:
    spec = spec_of("Zamba2ForCausalLM", **FIELDS, layers_block_type=KINDS, num_hidden_layers=5)
    firsts = [pair for pair in spec.layers[::2]]
    assert [mixer and mixer.block for mixer, _ in firsts] == [None, 0, None, 1, 0]
    assert all(type(mixer) is StateSpace and ffn is None for mixer, ffn in spec.layers[1::2])
    attention, ffn = firsts[1]
    assert type(attention) is SharedAttention and attention.adapter_rank is None
    assert attention.scale == (attention.head_dim / 2) ** -0.5 and attention.rope is None
    assert type(ffn) is SharedGlu and ffn.adapter_rank == 4


def test_the_published_layout_is_the_default(spec_of: Any) -> None:
    spec = spec_of("Zamba2ForCausalLM", **FIELDS, num_hidden_layers=54, use_long_context=True)
    at = [layer for layer, (mixer, _) in enumerate(spec.layers[::2]) if mixer is not None]
    assert at == [6, 12, 18, 24, 30, 36, 42, 47, 51] and spec.max_length == 16384


def test_unknown_kinds_are_named(spec_of: Any) -> None:
    with pytest.raises(ModelError, match="no layers of the kind 'sliding'"):
        spec_of("Zamba2ForCausalLM", **FIELDS, layers_block_type=["sliding"], num_hidden_layers=1)
