"""Decoders that mix attention with recurrent layers: LFM2, LFM3, MiniMax-01."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.models.families.common import (
    Config,
    alibi,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
    rope,
    spelled,
)
from baton_worker.models.families.moe_common import (
    LAYER,
    NORM_EPS,
    router,
    small,
    sparse_where,
    stacked,
)
from baton_worker.spec import (
    Blend,
    Decoder,
    Ffn,
    Fused,
    Glu,
    LinearAttention,
    Mask,
    Mixer,
    Moe,
    Norm,
    OutputGate,
    QkNorm,
    ShortConv,
)

LFM2_NAMES = named(
    LAYER,
    norm="model.embedding_norm",
    mixer_norm="operator_norm",
    ffn_norm="ffn_norm",
    output="self_attn.out_proj",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    router="feed_forward.gate",
    router_correction="feed_forward.expert_bias",
    expert_gate="feed_forward.experts.{expert}.w1",
    expert_up="feed_forward.experts.{expert}.w3",
    expert_down="feed_forward.experts.{expert}.w2",
)


def lfm2_body(c: Config, ffns: Ffn | list[Ffn]) -> Decoder:
    """Short convolutions, and attention with normed heads where `layer_types` is not `conv`."""
    c = spelled(c, tie_word_embeddings="tie_embedding")
    norm = Norm(getattr(c, "norm_eps", 1e-5))
    heads = gqa(c, qk_norm=QkNorm(norm), base=1e6)
    bias = getattr(c, "conv_bias", False)
    conv = ShortConv(c.hidden_size, getattr(c, "conv_L_cache", 3), bias)
    full = getattr(c, "full_attn_idxs", None)
    full = range(c.num_hidden_layers) if full is None else full
    kinds = getattr(c, "layer_types", None) or [
        "full_attention" if layer in full else "conv" for layer in range(c.num_hidden_layers)
    ]
    return decoder(
        c,
        [conv if kind == "conv" else heads for kind in kinds],
        ffns,
        norm=norm,
        tied=True,
        names=LFM2_NAMES,
        fused=(Fused(f"{LAYER}.conv.in_proj", ("conv_before", "conv_after", "conv_input")),),
    )


@architecture("Lfm2ForCausalLM")
def lfm2(c: Config) -> Decoder:
    """By default the feed-forward has two thirds of the config's width, rounded up to a
    multiple."""
    size = getattr(c, "block_ff_dim", None) or c.intermediate_size
    if getattr(c, "block_auto_adjust_ff_dim", True):
        factor = getattr(c, "block_ffn_dim_multiplier", None) or 1.0
        size = int(factor * int(2 * size / 3))
        size += -size % getattr(c, "block_multiple_of", 256)
    return lfm2_body(c, Glu(size))


@architecture("Lfm2MoeForCausalLM")
def lfm2_moe(c: Config) -> Decoder:
    sigmoid = router(
        c,
        score="sigmoid",
        correction=getattr(c, "use_expert_bias", True),
        norm=1.0 if getattr(c, "norm_topk_prob", True) else None,
        norm_floor=1e-6,
        scale=getattr(c, "routed_scaling_factor", 1.0),
    )
    dense = getattr(c, "num_dense_layers", 2)
    layers = [layer >= dense for layer in range(c.num_hidden_layers)]
    moe = Moe(sigmoid, replace(small(c), activation="silu"))
    body = lfm2_body(c, sparse_where(layers, moe, Glu(c.intermediate_size)))
    experts = stacked(f"{LAYER}.feed_forward.experts")
    return replace(body, tensors=replace(body.tensors, stacked=experts))


LFM3_NAMES = {
    **dict(LFM2_NAMES),
    **dict(
        named(
            LAYER,
            attention_gate="self_attn.gate_proj",
            mixer_post_norm="post_operator_norm",
            ffn_post_norm="post_ffn_norm",
            output="self_attn.o_proj",
            query_norm="self_attn.q_norm",
            key_norm="self_attn.k_norm",
        )
    ),
}
_LFM3_ROPES = SimpleNamespace(
    sliding_attention=SimpleNamespace(rope_type="default", rope_theta=10_000.0),
    full_attention=SimpleNamespace(
        rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.5
    ),
)
"""Defaults of transformers."""


def _lfm3_mixers(c: Config, norm: Norm) -> list[Mixer]:
    """By default every fourth layer sees all, and between two of these is one with a window."""
    usual = ("sliding_attention", "conv", "full_attention", "conv")
    kinds = getattr(c, "layer_types", None) or [
        usual[layer % 4] if layer else "conv" for layer in range(c.num_hidden_layers)
    ]
    gate = OutputGate("head") if getattr(c, "use_attention_gate", True) else None
    bias = getattr(c, "attention_bias", False)
    heads = gqa(
        c,
        bias=bias,
        output_bias=bias,
        qk_norm=QkNorm(norm),
        default_head_dim=128,
        rope=None,
        gate=gate,
    )
    ropes = getattr(c, "rope_parameters", None) or _LFM3_ROPES
    masks = {"sliding_attention": Mask(getattr(c, "sliding_window", 256)), "full_attention": Mask()}
    mixers: dict[str, Mixer] = {
        kind: replace(
            heads, mask=mask, rope=rope(c, heads.head_dim, parameters=getattr(ropes, kind))
        )
        for kind, mask in masks.items()
        if kind in kinds
    }
    mixers["conv"] = ShortConv(
        c.hidden_size, getattr(c, "conv_L_cache", 7), getattr(c, "conv_bias", False)
    )
    return [mixers[kind] for kind in kinds]


@architecture("Lfm3ForCausalLM")
def lfm3(c: Config) -> Decoder:
    """LFM3: LFM2 with windows in some layers, gated heads, and norms behind both halves."""
    norm = Norm(getattr(c, "norm_eps", 1e-5))
    return decoder(
        c,
        _lfm3_mixers(c, norm),
        Glu(c.intermediate_size),
        norm=norm,
        tied=True,
        style="sandwich" if getattr(c, "use_sandwich_norm", True) else "pre",
        names=tuple(LFM3_NAMES.items()),
        fused=(Fused(f"{LAYER}.conv.in_proj", ("conv_before", "conv_after", "conv_input")),),
    )


MINIMAX_NAMES = named(
    f"{LAYER}.block_sparse_moe",
    router="gate",
    expert_gate="experts.{expert}.w1",
    expert_down="experts.{expert}.w2",
    expert_up="experts.{expert}.w3",
)
DECAYS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Buffers of the Hugging Face class that follow from the configuration."""


def lightning(c: Config, layer: int, slopes: Sequence[float]) -> LinearAttention:
    """The linear attention of a layer: deeper layers decay more slowly."""
    last = max(c.num_hidden_layers - 1, 1)
    factor = 1 - layer / last + 1e-5
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    decays = tuple(slope * factor for slope in slopes)
    activation = getattr(c, "hidden_act", "silu")
    return LinearAttention(c.num_attention_heads, head_dim, decays, Norm(1e-6), activation)


def minimax_body(c: Config, full: Sequence[bool], slopes: Sequence[float], blend: Blend) -> Decoder:
    """Attention in the layers that are `full`, linear attention in the others, experts in all."""
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    window = Mask(window=getattr(c, "sliding_window", None))
    turned = getattr(c, "rotary_dim", None)
    partial = turned / head_dim if turned else None
    heads = gqa(c, mask=window, base=1e6, partial=partial)
    mixers: list[Mixer] = [
        heads if full_attention else lightning(c, layer, slopes)
        for layer, full_attention in enumerate(full)
    ]
    return decoder(
        c,
        mixers,
        Moe(router(c, norm=1.0), glu(c)),
        norm=rms(c, NORM_EPS),
        style="blended",
        blend=blend,
        names=MINIMAX_NAMES,
        fused=(
            Fused(f"{LAYER}.self_attn.qkv_proj", ("query", "key", "value"), c.num_attention_heads),
        ),
        stacked=stacked(f"{LAYER}.block_sparse_moe.experts"),
        renames=((r"\.mlp\.(gate|experts)\.", r".block_sparse_moe.\1."),),
        unused=tuple(
            f"{LAYER}.self_attn.{name}".format(layer=layer)
            for layer in range(c.num_hidden_layers)
            for name in DECAYS
        ),
    )


@architecture("MiniMaxForCausalLM")
def minimax(c: Config) -> Decoder:
    """The transformers format; by default every other layer is linear."""
    kinds = getattr(c, "layer_types", None)
    full = [
        kinds[layer] == "full_attention" if kinds else layer % 2 == 0
        for layer in range(c.num_hidden_layers)
    ]
    slopes = [
        2.0 ** (-8 * (head + 1) / c.num_attention_heads) for head in range(c.num_attention_heads)
    ]
    blend = Blend(
        *(
            (getattr(c, f"{part}_alpha_factor", 1.0), getattr(c, f"{part}_beta_factor", 1.0))
            for part in ("full_attn", "linear_attn", "mlp")
        )
    )
    return minimax_body(c, full, slopes, blend)


@architecture("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM")
def minimax_text_01(c: Config) -> Decoder:
    """The original format: `attn_type_list` is 1 for full attention layers."""
    if getattr(c, "shared_intermediate_size", 0):
        raise ModelError("Baton cannot serve MiniMax-01 checkpoints with a shared expert yet.")
    if not getattr(c, "postnorm", False):
        raise ModelError("Baton cannot serve MiniMax-01 checkpoints without postnorm yet.")
    blend = Blend(
        *(
            (getattr(c, f"layernorm_{part}_alpha", 1), getattr(c, f"layernorm_{part}_beta", 1))
            for part in ("full_attention", "linear_attention", "mlp")
        )
    )
    full = [kind == 1 for kind in c.attn_type_list]
    return minimax_body(c, full, alibi(c.num_attention_heads), blend)
