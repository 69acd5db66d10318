"""Fields of mixtures of experts in GGUF files; `test_gguf_converted.py` loads a file of each."""

from __future__ import annotations

import gguf
import pytest

from baton.errors import ModelError
from baton_worker.checkpoint.gguf.moe_families import MIXTURES
from tests.support.worker.gguf_metadata import Fake

COMMON = {"expert_count": 8, "expert_used_count": 2, "feed_forward_length": 64}


def test_gguf_has_experts_in_every_row() -> None:
    for name, family in MIXTURES.items():
        named = family.names_of or name.partition(" ")[0]
        arch = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == named)
        assert gguf.MODEL_TENSOR.FFN_UP_EXP in gguf.MODEL_TENSORS[arch], name


def test_experts_say_their_own_size_or_that_of_the_model() -> None:
    fields = MIXTURES["qwen3moe"].fields
    assert fields(Fake(**COMMON))["moe_intermediate_size"] == 64
    own = fields(Fake(**COMMON, expert_feed_forward_length=16))
    assert own["moe_intermediate_size"] == 16 and own["norm_topk_prob"]


def test_the_router_tells_the_versions_of_deepseek_apart() -> None:
    latent = {
        "rope__dimension_count": 64,
        "attention__kv_lora_rank": 512,
        "attention__key_length": 192,
        "attention__value_length": 128,
        "embedding_length": 2048,
        "attention__head_count": 16,
    }
    fields = MIXTURES["deepseek2"].fields
    second = fields(Fake(**COMMON, **latent))
    assert second["architectures"] == ["DeepseekV2ForCausalLM"]
    assert (second["qk_nope_head_dim"], second["v_head_dim"]) == (128, 128)
    for sign in ({"expert_gating_func": 2}, {"rows exp_probs_b": 8}):
        third = fields(Fake(**COMMON, **latent, **sign))
        assert third["architectures"] == ["DeepseekV3ForCausalLM"]


def test_the_first_router_shows_how_many_layers_are_dense() -> None:
    sizes = COMMON | {"block_count": 4}
    routers = [f"blk.{layer}.ffn_gate_inp.weight" for layer in (2, 3)]
    fields = MIXTURES["olmoe"].fields
    assert fields(Fake(**sizes, tensors=routers))["first_k_dense_replace"] == 2
    given = fields(Fake(**sizes, tensors=routers, leading_dense_block_count=1))
    assert given["first_k_dense_replace"] == 1


def test_a_router_that_is_not_served_is_refused() -> None:
    with pytest.raises(ModelError, match="gating function 3"):
        MIXTURES["glm4moe"].fields(Fake(**COMMON, expert_gating_func=3))


def test_layers_of_jamba_are_known_by_what_they_have() -> None:
    """Of eight layers one attends; the others have experts or not, as their routers say."""
    sizes = {"ssm__inner_size": 32, "ssm__state_size": 4, "ssm__time_step_rank": 2}
    file = Fake(
        **COMMON,
        **sizes,
        ssm__conv_kernel=4,
        block_count=8,
        embedding_length=16,
        attention__head_count_kv=[0, 0, 0, 0, 2, 0, 0, 0],
        tensors=["blk.0.ssm_a", *(f"blk.{layer}.ffn_gate_inp.weight" for layer in (1, 3, 5, 7))],
    )
    fields = MIXTURES["jamba"].fields(file)
    assert (fields["attn_layer_period"], fields["attn_layer_offset"]) == (8, 4)
    assert (fields["expert_layer_period"], fields["expert_layer_offset"]) == (2, 1)
    assert fields["num_key_value_heads"] == 2 and fields["mamba_expand"] == 2


def test_afmoe_under_the_names_of_its_config() -> None:
    file = Fake(**COMMON, expert_shared_count=1, leading_dense_block_count=2)
    fields = MIXTURES["afmoe"].fields(file)
    assert (fields["num_shared_experts"], fields["num_dense_layers"]) == (1, 2)
    assert fields["mup_enabled"] and fields["layer_types"] is None


def test_the_llama_4_with_most_experts_norms_nothing() -> None:
    fields = MIXTURES["llama4"].fields
    assert fields(Fake(**COMMON | {"expert_count": 16}))["use_qk_norm"]
    assert not fields(Fake(**COMMON | {"expert_count": 128}))["use_qk_norm"]
