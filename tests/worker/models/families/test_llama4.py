"""Llama 4: which layers turn, see all tokens, and have experts."""

from __future__ import annotations

from baton_worker.spec import Attention, Glu, Moe
from tests.support.moe_configs import kinds, spec

FIELDS = {
    "head_dim": 8,
    "num_local_experts": 8,
    "intermediate_size_mlp": 96,
    "attention_chunk_size": 16,
    "interleave_moe_layer_step": 2,
    "no_rope_layers": [1, 1, 1, 0],
    "moe_layers": [1, 3],
}


def test_layers_without_a_rope_see_more_than_their_chunk() -> None:
    mixers = [mixer for mixer, _ in spec("Llama4ForCausalLM", **FIELDS).layers]
    assert all(isinstance(mixer, Attention) for mixer in mixers)
    assert [(m.rope is not None, m.mask.chunk) for m in mixers if isinstance(m, Attention)] == [
        *[(True, 16)] * 3,
        (False, None),
    ]


def test_experts_are_where_the_config_has_them() -> None:
    decoder = spec("Llama4ForCausalLM", **FIELDS)
    assert kinds(decoder) == [Glu, Moe, Glu, Moe]
    assert decoder.layers[0][1] == Glu(96)
