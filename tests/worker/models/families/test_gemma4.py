"""What Gemma 4 reads from a config."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec import (
    BoundedGlu,
    KeyAsValueAttention,
    KVReuse,
    NormedValueAttention,
    ParallelMoe,
)

NAME = "Gemma4ForCausalLM"
DENSE = {
    "num_hidden_layers": 12,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
}


def test_global_layers_have_heads_of_their_own(spec_of: Any) -> None:
    """Wider and fewer, whose keys are the values."""
    spec = spec_of(NAME, **DENSE)
    mixers = [mixer for mixer, _ in spec.layers]
    assert [n for n, mixer in enumerate(mixers) if mixer.mask.window is None] == [5, 11]
    local, full = mixers[4], mixers[5]
    assert (type(local), type(full)) == (NormedValueAttention, KeyAsValueAttention)
    assert (local.head_dim, local.num_kv_heads, local.mask.window) == (256, 16, 512)
    assert (full.head_dim, full.num_kv_heads, full.scale) == (512, 4, 1.0)
    assert (local.rope.kind, local.rope.base) == ("default", 1e4)
    assert (full.rope.kind, full.rope.base, full.rope.dim) == ("proportional", 1e6, 512)
    assert dict(full.rope.parameters) == {"share": 0.25}
    assert spec.layer_embeddings is None and spec.head.tied and spec.head.softcap is None
    assert spec.layers[0][1].activation == "gelu_pytorch_tanh"


def test_the_last_layers_read_the_kv_of_others(spec_of: Any) -> None:
    shared = {"num_hidden_layers": 12, "num_kv_shared_layers": 5, "use_double_wide_mlp": True}
    spec = spec_of(NAME, **shared)
    mixers = [mixer for mixer, _ in spec.layers]
    assert [mixer.source for mixer in mixers[7:]] == [6, 6, 6, 6, 5]
    assert not any(isinstance(mixer, KVReuse) for mixer in mixers[:7])
    assert [ffn.intermediate for _, ffn in spec.layers[6:8]] == [96, 192]
    own = spec.layer_embeddings
    assert (own.width, own.vocab, own.activation) == (256, 262_144, "gelu_pytorch_tanh")


def test_experts_are_beside_the_feed_forward(spec_of: Any) -> None:
    experts = {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 24}
    _, ffn = spec_of(NAME, enable_moe_block=True, **experts).layers[0]
    assert isinstance(ffn, ParallelMoe) and ffn.branch.router.factors
    assert (ffn.dense.intermediate, ffn.branch.expert.intermediate) == (96, 24)


def test_a_config_that_transformers_has_saved_says_the_same(spec_of: Any) -> None:
    """With the sizes of each layer, in place of two keys."""
    own = {str(layer): {"head_dim": 512, "num_key_value_heads": 4} for layer in (5, 11)}
    saved = {key: value for key, value in DENSE.items() if "global" not in key}
    assert spec_of(NAME, **saved, per_layer_config=own) == spec_of(NAME, **DENSE)


def test_what_cannot_be_served_is_refused(spec_of: Any) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all'"),
        ({"per_layer_config": {"1": {"sliding_window": 3}}}, "no sliding_window of a layer's own"),
        ({"num_hidden_layers": 6, "num_kv_shared_layers": 1}, "no layer .* full_attention share"),
    ]
    for fields, why in cases:
        with pytest.raises(ModelError, match=why):
            spec_of(NAME, **fields)


SEEING = "Gemma4ForConditionalGeneration"


def test_images_are_seen_both_ways_in_layers_with_a_window(spec_of: Any) -> None:
    text = DENSE | {"use_bidirectional_attention": "vision", "pad_token_id": 5}
    vision = {"use_clipped_linears": True, "standardize": True}
    spec = spec_of(SEEING, text_config=text, vision_config=vision)
    assert spec.tower.bidirectional and spec.tower.image_token == 258_880
    assert {(m.mask.window is None, m.mask.spans) for m, _ in spec.layers} == {
        (False, True),
        (True, False),
    }
    attention, ffn = spec.tower.stack.layers[0]
    assert attention.projections.bounded and isinstance(ffn, BoundedGlu)
    assert (attention.rope.base, attention.rope.kind) == (100.0, "axial_halves")
    assert spec.tower.stack.patches.table == 10_240 and len(spec.tower.stack.layers) == 16
    text = {"hidden_size_per_layer_input": 8, "pad_token_id": 5}
    plain = spec_of(SEEING, text_config=text, vision_config={})
    own = plain.layer_embeddings
    assert (own.media_tokens, own.media_row) == ((258_880, 258_881, 258_884), 5)
    assert not plain.tower.bidirectional and not any(m.mask.spans for m, _ in plain.layers)


@pytest.mark.parametrize(
    ("vision", "said"),
    [
        ({"attention_bias": True}, "vision_config.attention_bias"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "the type yarn"),
    ],
)
def test_what_no_encoder_has_is_refused(spec_of: Any, vision: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        spec_of(SEEING, text_config={}, vision_config=vision)
