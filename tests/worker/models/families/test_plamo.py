"""Configs of PLaMo 2: where attention is, and how far it sees."""

from __future__ import annotations

from typing import Any

from baton_worker.spec import Attention, SelectiveStateSpace

FIELDS = {"mamba_num_heads": 4, "hidden_size_per_head": 16, "attention_window_size": 32}


def test_every_other_layer_attends_within_its_window(spec_of: Any) -> None:
    spec = spec_of("Plamo2ForCausalLM", **FIELDS, num_hidden_layers=4, full_attention_idx=[3])
    mixers = [mixer for mixer, _ in spec.layers]
    assert [type(mixer) for mixer in mixers] == [SelectiveStateSpace, Attention] * 2
    assert mixers[1].mask.window == 33, "a token sees 32 tokens before itself"
    assert mixers[3].mask.window is None
    assert spec.max_length == 10 * 1024 * 1024 and spec.post_offsets == (1 / 5, 1 / 5**1.5)


def test_few_layers_end_with_attention_and_none_may_have_a_state(spec_of: Any) -> None:
    few = spec_of("Plamo2ForCausalLM", **FIELDS, num_hidden_layers=2, mamba_step=4)
    assert [type(mixer) for mixer, _ in few.layers] == [SelectiveStateSpace, Attention]
    plain = spec_of("Plamo2ForCausalLM", **FIELDS, num_hidden_layers=2, mamba_enabled=False)
    assert [type(mixer) for mixer, _ in plain.layers] == [Attention, Attention]


def test_plamo3_sees_everything_in_every_eighth_layer(spec_of: Any) -> None:
    spec = spec_of("Plamo3ForCausalLM", num_hidden_layers=8)
    mixers = [mixer for mixer, _ in spec.layers]
    assert [mixer.mask.window for mixer in mixers] == [2048] * 7 + [None]
    assert {mixer.rope.base for mixer in mixers[:7]} == {10_000.0}
    assert mixers[7].rope.base == 1e6 and spec.post_offsets == (1 / 5, 1 / 5**1.5)


def test_plamo3_scales_the_rope_of_layers_without_a_window(spec_of: Any) -> None:
    fields = {"rope_scaling_factor": 4, "initial_context_length": 4096}
    spec = spec_of("Plamo3ForCausalLM", num_hidden_layers=8, **fields)
    assert [mixer.rope.kind for mixer, _ in spec.layers] == ["default"] * 7 + ["yarn"]
    assert dict(spec.layers[7][0].rope.parameters)["original_max_position_embeddings"] == 4096
