"""What a config says of experts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.models.families import mixtures
from baton_worker.models.resolve import resolve
from baton_worker.models.spec import Attention, Decoder, Glu, Moe

BODY: dict[str, Any] = {
    **{"hidden_size": 48, "vocab_size": 320, "intermediate_size": 80, "num_hidden_layers": 4},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256},
    **{"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
}


def spec(architecture: str, **fields: Any) -> Decoder:
    return resolve(SimpleNamespace(**BODY | fields, architectures=[architecture]))


def kinds(decoder: Decoder) -> list[type | None]:
    return [None if ffn is None else type(ffn) for _, ffn in decoder.layers]


@pytest.mark.parametrize("word", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_every_word_for_the_number_of_experts(word: str) -> None:
    c = SimpleNamespace(**{word: 5}, num_experts_per_tok=2, norm_topk_prob=True)
    routing = mixtures.router(c)
    assert (routing.num_experts, routing.top_k, routing.norm) == (5, 2, 1.0)


def test_a_config_without_experts_is_refused() -> None:
    with pytest.raises(ModelError, match="lacks a field: num_experts"):
        spec("Qwen3MoeForCausalLM", num_experts=None)


def test_sparse_steps_and_dense_layers() -> None:
    decoder = spec("Qwen3MoeForCausalLM", decoder_sparse_step=2, mlp_only_layers=[3])
    assert kinds(decoder) == [Glu, Moe, Glu, Glu]
    decoder = spec("Glm4MoeForCausalLM", n_shared_experts=1, first_k_dense_replace=2)
    assert kinds(decoder) == [Glu, Glu, Moe, Moe]


def test_an_interval_of_layers() -> None:
    decoder = spec(
        "Ernie4_5_MoeForCausalLM",
        moe_num_shared_experts=0,
        moe_layer_start_index=1,
        moe_layer_end_index=-1,
        moe_layer_interval=2,
    )
    assert kinds(decoder) == [Glu, Moe, Glu, Moe]


def test_layers_may_differ_in_experts_and_top_k() -> None:
    decoder = spec("HunYuanMoEV1ForCausalLM", num_experts=[2, 4, 4, 8], moe_topk=[1, 2, 2, 3])
    routers = [ffn.router for _, ffn in decoder.layers if isinstance(ffn, Moe)]
    assert [(r.num_experts, r.top_k) for r in routers] == [(2, 1), (4, 2), (4, 2), (8, 3)]


def test_afmoe_weighs_as_its_config_says() -> None:
    _, ffn = spec("AfmoeForCausalLM", route_scale=2.5).layers[-1]
    assert isinstance(ffn, Moe) and ffn.shared == Glu(48)
    assert (ffn.router.norm, ffn.router.scale) == (1.0, 2.5)
    plain = spec("AfmoeForCausalLM", num_shared_experts=0, route_norm=False)
    _, ffn = plain.layers[-1]
    assert isinstance(ffn, Moe) and ffn.shared is None and ffn.router.norm is None
    assert plain.embedding.scale == 1.0 and plain.layers[0][1] == Glu(80)


def test_draft_layers_may_stay_unread() -> None:
    c = SimpleNamespace(num_hidden_layers=4, num_nextn_predict_layers=2)
    assert mixtures.draft_layers(c) == ("model.layers.4.", "model.layers.5.")


def test_hub_spelling_of_mimo() -> None:
    decoder = spec(
        "MiMoV2FlashForCausalLM",
        head_dim=24,
        v_head_dim=16,
        hybrid_layer_pattern=[0, 1, 1, 0],
        moe_layer_freq=[0, 1, 1, 1],
        partial_rotary_factor=0.334,
        rope_theta=50_000,
        swa_rope_theta=10_000,
        swa_num_key_value_heads=3,
        sliding_window_size=128,
        routed_scaling_factor=None,
    )
    assert kinds(decoder) == [Glu, Moe, Moe, Moe]
    whole, local = (decoder.layers[layer][0] for layer in (0, 1))
    assert isinstance(whole, Attention) and isinstance(local, Attention)
    assert (whole.num_kv_heads, whole.window, whole.sinks) == (2, None, False)
    assert (local.num_kv_heads, local.window, local.sinks) == (3, 129, True)
    assert whole.rope is not None and (whole.rope.base, whole.rope.dim) == (50_000.0, 8)
    assert local.rope is not None and local.rope.base == 10_000.0


def test_what_gpt_oss_cannot_be_is_refused() -> None:
    with pytest.raises(ModelError, match="swiglu_alpha"):
        spec("GptOssForCausalLM", swiglu_alpha=2.0)
