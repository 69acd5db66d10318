"""Decoders that mix attention with delta nets: Qwen3-Next, Qwen3.5, Kimi Linear, OLMo Hybrid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from baton.errors import ModelError
from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
    rope,
    spelled,
)
from baton_worker.models.families.mla import latent
from baton_worker.models.families.moe import qwen_layers
from baton_worker.models.families.moe_common import (
    FUSED,
    LAYER,
    NORM_EPS,
    first,
    no_auxiliary_loss,
    router,
    shared_under,
    small,
    sparse_where,
)
from baton_worker.models.families.qwen_vision import RENAMES, qwen3_vl_vision
from baton_worker.models.families.vision_common import with_tower
from baton_worker.models.families.vision_language import language_model
from baton_worker.spec import (
    Attention,
    Decoder,
    DeltaNet,
    Ffn,
    Fused,
    GatedNorm,
    Glu,
    Mixer,
    Moe,
    OutputGate,
    QkNorm,
    Sections,
)

_MIXED = ("delta_query", "delta_key", "delta_value")
_CONVS = ("delta_query_conv", "delta_key_conv", "delta_value_conv")


def gated_delta_net(c: Config, **changes: Any) -> DeltaNet:
    """The delta net of the config, one decay per head."""
    num_heads = first(c, "linear_num_value_heads", default=32)
    values: dict[str, Any] = {
        "num_key_heads": first(c, "linear_num_key_heads", default=16),
        "num_heads": num_heads,
        "key_dim": first(c, "linear_key_head_dim", default=128),
        "value_dim": first(c, "linear_value_head_dim", default=128),
        "taps": getattr(c, "linear_conv_kernel_dim", 4),
        "norm": GatedNorm(rms(c).eps, num_heads, gate_first=False, shared=True),
        "activation": getattr(c, "hidden_act", "silu"),
        "tiled_output": getattr(c, "linear_output_tiled", False),
    }
    return DeltaNet(**values | changes)


def mixed(kinds: Sequence[str], heads: Mixer, delta: DeltaNet) -> list[Mixer]:
    """One mixer per layer."""
    return [heads if kind == "full_attention" else delta for kind in kinds]


def every_fourth(c: Config) -> list[str]:
    """The type of each layer; by default every fourth is global."""
    every = first(c, "full_attention_interval", default=4)
    return getattr(c, "layer_types", None) or [
        "linear_attention" if (layer + 1) % every else "full_attention"
        for layer in range(c.num_hidden_layers)
    ]


def qwen_body(c: Config, ffns: Ffn | Sequence[Ffn]) -> Decoder:
    """Norms by 1 + w; attention gated per channel, with gate and query in one projection,
    alternating by head. A delta net's projections come in the two tensors of Qwen3-Next, grouped by
    key head, or in the four of Qwen3.5."""
    norm, bias = rms(c, offset=1.0), getattr(c, "attention_bias", False)
    heads = gqa(
        c,
        default_head_dim=256,
        partial=0.25,
        bias=bias,
        output_bias=bias,
        qk_norm=QkNorm(norm),
        gate=OutputGate("channel", bias),
    )
    delta, inputs = gated_delta_net(c), f"{LAYER}.linear_attn"
    groups = delta.num_key_heads
    return decoder(
        c,
        mixed(every_fourth(c), heads, delta),
        ffns,
        norm=norm,
        names=shared_under("mlp.shared_expert"),
        fused=(
            Fused(f"{LAYER}.self_attn.q_proj", ("query", "attention_gate"), heads.num_heads),
            Fused(f"{inputs}.in_proj_qkvz", (*_MIXED, "delta_gate"), groups),
            Fused(f"{inputs}.in_proj_ba", ("delta_strength", "delta_decay"), groups),
            Fused(f"{inputs}.in_proj_qkv", _MIXED),
            Fused(f"{inputs}.conv1d", _CONVS),
        ),
        stacked=FUSED,
        unused=("mtp.",),
    )


def qwen_moe(c: Config, norm: float | None) -> Moe:
    """Routed experts and a gated shared expert."""
    act = getattr(c, "hidden_act", "silu")
    shared = Glu(c.shared_expert_intermediate_size, act)
    expert = Glu(c.moe_intermediate_size, act)
    return Moe(router(c, norm=norm), expert, shared=shared, shared_gate=True)


@architecture("Qwen3NextForCausalLM")
def qwen3_next(c: Config) -> Decoder:
    norm = 1.0 if getattr(c, "norm_topk_prob", True) else None
    return qwen_body(c, qwen_layers(c, qwen_moe(c, norm)))


@architecture("Qwen3_5ForCausalLM")
def qwen3_5(c: Config) -> Decoder:
    return qwen_body(c, glu(c))


@architecture("Qwen3_5MoeForCausalLM")
def qwen3_5_moe(c: Config) -> Decoder:
    return qwen_body(c, qwen_moe(c, 1.0))


@architecture("Qwen3_5ForConditionalGeneration")
def qwen3_5_vl(c: Config) -> Decoder:
    decoder = language_model(c, qwen3_5, Sections((11, 11, 10), "cycled"))
    return _with_vision(c, decoder)


@architecture("Qwen3_5MoeForConditionalGeneration")
def qwen3_5_vl_moe(c: Config) -> Decoder:
    decoder = language_model(c, qwen3_5_moe, Sections((11, 11, 10), "cycled"))
    return _with_vision(c, decoder)


def _with_vision(c: Config, decoder: Decoder) -> Decoder:
    """With Qwen3-VL's encoder; the decoder takes only its last states."""
    tower = qwen3_vl_vision(c, decoder.hidden, deepstack=False)
    return with_tower(decoder, tower, RENAMES)


KIMI_NAMES = named(
    f"{LAYER}",
    delta="self_attn",
    delta_query="self_attn.q_proj",
    delta_key="self_attn.k_proj",
    delta_value="self_attn.v_proj",
    delta_gate="self_attn.g_b_proj",
    delta_gate_down="self_attn.g_a_proj",
    delta_strength="self_attn.b_proj",
    delta_decay="self_attn.f_b_proj",
    delta_decay_down="self_attn.f_a_proj",
    delta_query_conv="self_attn.q_conv1d",
    delta_key_conv="self_attn.k_conv1d",
    delta_value_conv="self_attn.v_conv1d",
    delta_norm="self_attn.o_norm",
    delta_output="self_attn.o_proj",
    expert_gate="mlp.experts.{expert}.w1",
    expert_down="mlp.experts.{expert}.w2",
    expert_up="mlp.experts.{expert}.w3",
)


def kimi_delta_attention(c: Config) -> DeltaNet:
    """Equally many key and value heads of one width; one decay per channel."""
    nested = getattr(c, "linear_attn_config", None)
    num_heads = first(nested, "num_heads", default=getattr(c, "linear_num_heads", 32))
    dim = first(nested, "head_dim", default=getattr(c, "linear_head_dim", 128))
    taps = first(nested, "short_conv_kernel_size", default=getattr(c, "linear_conv_kernel_dim", 4))
    eps = rms(c, NORM_EPS).eps
    norm = GatedNorm(eps, num_heads, gate_first=False, shared=True, activation="sigmoid")
    act = getattr(c, "hidden_act", "silu")
    return DeltaNet(num_heads, num_heads, dim, dim, taps, norm, act, rank=dim)


def kimi_kinds(c: Config) -> list[str]:
    """The type of each layer. Moonshot's configs count global layers from 1."""
    full = first(getattr(c, "linear_attn_config", None), "full_attn_layers")
    layers = range(c.num_hidden_layers)
    seeing = layers[4::4] if full is None else [number - 1 for number in full]
    return getattr(c, "layer_types", None) or [
        "full_attention" if layer in seeing else "linear_attention" for layer in layers
    ]


@architecture("KimiLinearForCausalLM")
def kimi_linear(c: Config) -> Decoder:
    """Latent attention without rope in every fourth layer, and DeepSeek-style experts."""
    if not getattr(c, "mla_use_nope", True):
        raise ModelError("Baton cannot serve Kimi Linear checkpoints without mla_use_nope.")
    c = spelled(
        c,
        max_position_embeddings="model_max_length",
        num_experts_per_tok="num_experts_per_token",
        norm_topk_prob="moe_renormalize",
        n_group="num_expert_group",
        n_shared_experts="num_shared_experts",
    )
    heads = latent(c)
    scale = (heads.nope_dim + heads.rope_dim) ** -0.5
    score = first(c, "moe_router_activation_func", default="sigmoid")
    shared = small(c, c.moe_intermediate_size * c.n_shared_experts)
    moe = Moe(no_auxiliary_loss(c, score=score), small(c), shared=shared)
    return decoder(
        c,
        mixed(kimi_kinds(c), replace(heads, rope=None, scale=scale), kimi_delta_attention(c)),
        sparse_where(_kimi_sparse(c), moe, glu(c)),
        norm=rms(c, NORM_EPS),
        names=KIMI_NAMES,
        fused=(Fused(f"{LAYER}.self_attn.conv1d", _CONVS),),
        stacked=FUSED,
        renames=((r"\.block_sparse_moe\.", ".mlp."), (r"\.forget_gate\.", ".")),
    )


def _kimi_sparse(c: Config) -> list[bool]:
    kinds = getattr(c, "mlp_layer_types", None)
    dense, every = getattr(c, "first_k_dense_replace", 1), getattr(c, "moe_layer_freq", 1)
    return [
        kinds[layer] == "sparse" if kinds else layer >= dense and layer % every == 0
        for layer in range(c.num_hidden_layers)
    ]


@architecture("OlmoHybridForCausalLM")
def olmo_hybrid(c: Config) -> Decoder:
    """Post-norms around attention, which has no rope unless the config has one; pre-norms around
    delta nets."""
    bias, norm = getattr(c, "attention_bias", False), rms(c)
    rope_parameters = getattr(c, "rope_parameters", None)
    turned = getattr(rope_parameters, "rope_theta", None) is not None
    head_dim = c.hidden_size // c.num_attention_heads
    heads = gqa(
        c,
        bias=bias,
        output_bias=bias,
        qk_norm=QkNorm(norm, over="full"),
        rope=rope(c, head_dim) if turned else None,
    )
    return decoder(
        c,
        mixed(every_fourth(c), heads, _overshooting(c, heads)),
        glu(c),
        norm=norm,
        style="by_mixer",
        names=named(
            f"{LAYER}.linear_attn",
            delta_gate="g_proj",
            delta_strength="b_proj",
            delta_decay="a_proj",
            delta_norm="o_norm",
            delta_output="o_proj",
        ),
        fused=(Fused(f"{LAYER}.linear_attn.conv1d", _CONVS),),
        renames=(
            (r"\.attention_layer_norm\.", ".input_layernorm."),
            (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
        ),
    )


def _overshooting(c: Config, heads: Attention) -> DeltaNet:
    """Sizes follow from those of the attention; beta reaches 2, which allows negative eigenvalues
    (Grazzi et al. 2024, arXiv:2411.12537)."""
    num_key_heads = first(c, "linear_num_key_heads", default=heads.num_heads)
    num_heads = first(c, "linear_num_value_heads", default=heads.num_heads)
    dim = first(c, "linear_key_head_dim", default=int(0.75 * c.hidden_size / num_key_heads))
    return gated_delta_net(
        c,
        num_key_heads=num_key_heads,
        num_heads=num_heads,
        key_dim=dim,
        value_dim=first(c, "linear_value_head_dim", default=2 * dim),
        norm=GatedNorm(1e-5, num_heads, gate_first=False, shared=True),
        strength=2.0 if getattr(c, "linear_allow_neg_eigval", True) else 1.0,
    )
