"""Configs of Mamba-2 and its hybrids, and unsupported variants."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec import (
    Attention,
    GatedNorm,
    Glu,
    Mlp,
    Moe,
    StateSpace,
)

MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_expand": 2}
GRANITE = MAMBA | {
    "num_hidden_layers": 3,
    "attention_multiplier": 0.1,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
    "num_experts_per_tok": 2,
}
NEMOTRON = {
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "mlp_bias": False,
}


def kinds(spec: Any) -> list[type]:
    return [type(mixer) for mixer, _ in spec.layers]


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        (None, (0.0, float("inf"))),
        ([0.0, {"__float__": "Infinity"}], (0.0, float("inf"))),
        ([0.001, 0.1], (0.001, 0.1)),
    ],
)
def test_bounds_of_dt_may_be_infinite(
    spec_of: Any, given: Any, limits: tuple[float, float]
) -> None:
    spec = spec_of("BambaForCausalLM", **MAMBA, num_hidden_layers=1, time_step_limit=given)
    assert spec.layers[0][0].limits == limits


def test_bamba_attends_where_its_config_says_so(spec_of: Any) -> None:
    spec = spec_of("BambaForCausalLM", **MAMBA, num_hidden_layers=3, attn_layer_indices=[1])
    assert kinds(spec) == [StateSpace, Attention, StateSpace]
    mixer, heads = spec.layers[0][0], spec.layers[1][0]
    assert mixer.width == 2 * spec.hidden and heads.rope.dim == heads.head_dim // 2


@pytest.mark.parametrize("word", ["mamba", "linear_attention"])
def test_granite_names_its_layers_in_old_and_new_words(spec_of: Any, word: str) -> None:
    other = {"mamba": "attention"}.get(word, "full_attention")
    layers = [word, other, word]
    spec = spec_of("GraniteMoeHybridForCausalLM", **GRANITE, layer_types=layers)
    assert kinds(spec) == [StateSpace, Attention, StateSpace]
    heads, ffn = spec.layers[1]
    assert heads.rope is None and isinstance(ffn, Moe) and ffn.router.num_experts == 8


def test_granite_without_experts_has_the_shared_one_alone(spec_of: Any) -> None:
    fields = GRANITE | {"num_local_experts": 0, "shared_intermediate_size": 40}
    spec = spec_of("GraniteMoeHybridForCausalLM", **fields, position_embedding_type="rope")
    assert {type(ffn) for _, ffn in spec.layers} == {Glu}
    assert spec.layers[0][1].intermediate == 40
    assert kinds(spec) == [StateSpace] * 3
    names = dict(spec.tensors.names)
    assert names["down"].endswith("shared_mlp.output_linear") and "shared_down" not in names


@pytest.mark.parametrize(
    "fields",
    [
        {"hybrid_override_pattern": "M-*M"},
        {"layers_block_type": ["mamba", "mlp", "attention", "mamba"]},
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    ],
)
def test_nemotron_h_has_one_half_per_layer(spec_of: Any, fields: dict[str, Any]) -> None:
    spec = spec_of("NemotronHForCausalLM", **NEMOTRON, **fields)
    assert kinds(spec) == [StateSpace, type(None), Attention, StateSpace]
    ffns = [ffn for _, ffn in spec.layers]
    assert isinstance(ffns[1], Mlp) and ffns[1].activation == "relu2"
    assert [ffns[0], *ffns[2:]] == [None] * 3


FALCON = {
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_d_ssm": 96,
    "num_hidden_layers": 2,
    "key_multiplier": 0.25,
    "attention_in_multiplier": 2.0,
    "ssm_out_multiplier": 3.0,
    "mlp_multipliers": [4.0, 5.0],
    "ssm_multipliers": [1.0, 2.0, 3.0, 4.0, 5.0],
}


def test_a_layer_of_falcon_h1_is_two_of_ours_beside_each_other(spec_of: Any) -> None:
    spec = spec_of("FalconH1ForCausalLM", **FALCON)
    assert kinds(spec) == [StateSpace, Attention] * 2 and spec.style == "beside"
    assert [ffn is None for _, ffn in spec.layers] == [True, False] * 2
    assert dict(spec.tensors.names)["query"] == "model.layers.{pair}.self_attn.q_proj"
    assert spec.layers[0][0].width == 96


def test_multipliers_of_falcon_h1_are_where_they_apply(spec_of: Any) -> None:
    """The config lists those of gate, x, B, C and dt; ours lie as the layer projects."""
    spec = spec_of("FalconH1ForCausalLM", **FALCON)
    (mixer, _), (heads, ffn) = spec.layers[:2]
    assert mixer.scales == (1.0, 4.0, 2.0, 3.0, 5.0) and mixer.norm is None
    assert heads.scale == pytest.approx(0.25 * heads.head_dim**-0.5)
    assert ffn.gate_scale == 4.0
    assert (spec.blend.attention, spec.blend.linear) == ((2.0, 1.0), (1.0, 3.0))
    assert spec.blend.ffn == (1.0, 5.0)


@pytest.mark.parametrize("before", [None, True, False])
def test_the_norm_of_falcon_h1_is_optional(spec_of: Any, before: bool | None) -> None:
    fields = {"mamba_rms_norm": before is not None, "mamba_norm_before_gate": before}
    spec = spec_of("FalconH1ForCausalLM", **FALCON | {"ssm_multipliers": None}, **fields)
    mixer = spec.layers[0][0]
    assert mixer.scales is None
    assert mixer.norm == (None if before is None else GatedNorm(1e-5, 1, not before))


EXPERTS = NEMOTRON | {
    "hybrid_override_pattern": "ME*-",
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 30,
}


@pytest.mark.parametrize("width", [None, 20])
def test_experts_of_nemotron_h_have_no_gates(spec_of: Any, width: int | None) -> None:
    spec = spec_of("NemotronHForCausalLM", **EXPERTS, moe_latent_size=width)
    moe = spec.layers[1][1]
    assert isinstance(moe, Moe) and moe.router.score == "sigmoid"
    assert (moe.expert, moe.shared) == (Mlp(24, "relu2"), Mlp(30, "relu2"))
    assert moe.width == width


def test_narrow_experts_with_biases_are_refused(spec_of: Any) -> None:
    with pytest.raises(ModelError, match="narrow and have biases"):
        spec_of("NemotronHForCausalLM", **EXPERTS | {"mlp_bias": True}, moe_latent_size=20)
