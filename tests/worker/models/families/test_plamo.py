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
