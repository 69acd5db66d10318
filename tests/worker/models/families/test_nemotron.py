"""Nemotron and DeciLM."""

from __future__ import annotations

from typing import Any

import pytest


def test_nemotron_adds_one_to_its_layer_norms(spec_of: Any) -> None:
    spec = spec_of("NemotronForCausalLM", num_key_value_heads=2)
    mixer, ffn = spec.layers[0]
    assert (spec.norm.kind, spec.norm.offset, spec.norm.bias) == ("layer", 1.0, True)
    assert mixer.rope.dim == 4 and ffn.activation == "relu2" and not ffn.bias


def block(group: int | None, **ffn: Any) -> dict[str, Any]:
    attention = {"no_op": group is None, "n_heads_in_group": group}
    return {"attention": attention, "ffn": {"no_op": not ffn} | ffn}


@pytest.mark.parametrize("name", ["DeciLMForCausalLM", "NemotronNASForCausalLM"])
def test_layers_of_decilm_differ(spec_of: Any, name: str) -> None:
    blocks = [block(8, ffn_mult=5.25), block(None, intermediate_size=77), block(2)]
    spec = spec_of(name, num_hidden_layers=3, block_configs=blocks, hidden_size=8192)
    kinds = [mixer and mixer.num_kv_heads for mixer, _ in spec.layers]
    assert kinds == [1, None, 4]
    # Llama-3.1-Nemotron-51B: 5.25 of 8192 channels is a gated ffn of 28672.
    assert [ffn and ffn.intermediate for _, ffn in spec.layers] == [28672, 77, None]
