"""Mixtures of experts whose layers have windows or not, and ropes by that."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    gqa,
    named,
    rms,
    rope,
    rotating_windows,
)
from baton_worker.models.families.moe import qwen_layers
from baton_worker.models.families.moe_common import (
    FUSED,
    LAYER,
    after_dense,
    first,
    no_auxiliary_loss,
    router,
    shared_under,
    small,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Mask,
    Mixer,
    Moe,
    OutputGate,
    QkNorm,
    Rope,
    Sinks,
)

FULL, SLIDING = "full_attention", "sliding_attention"
_BASES = {FULL: 500_000.0, SLIDING: 10_000.0}
"""Wavelength bases of configs without ropes."""


def _ropes(c: Config, head_dim: int, shares: dict[str, float] | None = None) -> dict[str, Rope]:
    """The rope of each kind of layer. Without `shares`, the rotated shares of configs without
    ropes, whole heads turn."""
    given = vars(getattr(c, "rope_parameters", None) or SimpleNamespace())
    # As in transformers, keys of a single rope are not read.
    flat = ("rope_theta", "rope_scaling", "partial_rotary_factor")
    c = SimpleNamespace(**{name: value for name, value in vars(c).items() if name not in flat})
    ropes = dict[str, Rope]()
    for kind, base in _BASES.items():
        values = given.get(kind) or SimpleNamespace(rope_theta=base)
        share = None if shares is None else (1.0 if given else shares[kind])
        ropes[kind] = rope(c, head_dim, parameters=values, base=base, partial=share)
    return ropes


def _by_kind(c: Config, heads: list[Attention], ropes: dict[str, Rope], window: int) -> list[Mixer]:
    """Each layer's heads with its window, if any, and the rope of its kind."""
    kinds = getattr(c, "layer_types", None) or [FULL] * c.num_hidden_layers
    masks = {FULL: Mask(), SLIDING: Mask(getattr(c, "sliding_window", window))}
    return [
        replace(each, rope=ropes[kind], mask=masks[kind])
        for each, kind in zip(heads, kinds, strict=True)
    ]


@architecture("MellumForCausalLM")
def mellum(c: Config) -> Decoder:
    """Mellum 2: Qwen 3's experts."""
    bias = getattr(c, "attention_bias", False)
    heads = gqa(
        c,
        bias=bias,
        output_bias=bias,
        qk_norm=QkNorm(rms(c)),
        default_head_dim=128,
        rope=None,
    )
    routing = router(c, norm=1.0 if getattr(c, "norm_topk_prob", True) else None)
    return decoder(
        c,
        _by_kind(c, [heads] * c.num_hidden_layers, _ropes(c, heads.head_dim), 1024),
        after_dense(c, Moe(routing, small(c))),
        stacked=FUSED,
        unused=("mtp.",),
    )


@architecture("LagunaForCausalLM")
def laguna(c: Config) -> Decoder:
    """Laguna: layers differ in their number of heads, whose output has a gate."""
    bias, norm = getattr(c, "attention_bias", False), rms(c)
    gating = getattr(c, "gating", True)
    heads = gqa(
        c,
        bias=bias,
        output_bias=bias,
        qk_norm=QkNorm(norm),
        default_head_dim=128,
        rope=None,
        gate=OutputGate("head" if gating in (True, "per-head") else "channel", function="softplus"),
    )
    counts = getattr(c, "num_attention_heads_per_layer", None)
    counts = counts or [c.num_attention_heads] * c.num_hidden_layers
    routing = no_auxiliary_loss(
        c,
        num_groups=1,
        top_groups=1,
        norm=1.0,
        scale=first(c, "moe_routed_scaling_factor", default=1.0),
        softcap=getattr(c, "moe_router_logit_softcapping", 0.0) or None,
    )
    shared = small(c, first(c, "shared_expert_intermediate_size", default=512))
    ropes = _ropes(c, heads.head_dim, {FULL: 0.5, SLIDING: 1.0})
    return decoder(
        c,
        _by_kind(c, [replace(heads, num_heads=count) for count in counts], ropes, 512),
        after_dense(c, Moe(routing, small(c), shared=shared), 1),
        stacked=FUSED,
        renames=(
            (r"\.experts\.e_score_correction_bias$", ".gate.e_score_correction_bias"),
            (r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),
        ),
    )


@architecture("FlintForCausalLM")
def flint(c: Config) -> Decoder:
    """Flint: sinks in all layers, and no rope where there is no window."""
    bias, last = getattr(c, "attention_bias", False), c.num_hidden_layers - 1
    kinds = getattr(c, "layer_types", None) or [
        FULL if layer < 2 or layer % 4 == 1 or layer == last else SLIDING
        for layer in range(c.num_hidden_layers)
    ]
    dense = getattr(c, "mlp_only_layers", None)
    dense = [0, 1] if dense is None else dense
    c = SimpleNamespace(**vars(c) | {"layer_types": kinds, "mlp_only_layers": dense})
    heads = gqa(
        c,
        bias=bias,
        output_bias=bias,
        qk_norm=QkNorm(rms(c)),
        default_head_dim=128,
        sinks=Sinks(),
    )
    normed = 1.0 if getattr(c, "norm_topk_prob", True) else None
    shared = small(c, first(c, "shared_expert_intermediate_size", default=1024))
    moe = Moe(router(c, score="sigmoid", norm=normed), small(c), shared=shared)
    return decoder(
        c,
        rotating_windows(c, heads, getattr(c, "sliding_window", 513)),
        qwen_layers(c, moe),
        names=shared_under("mlp.shared_expert"),
        stacked=FUSED,
        renames=((r"\.self_attn\.softmax_offset$", ".self_attn.sinks"),),
    )


@architecture("Kolibri1ForCausalLM")
def kolibri1(c: Config) -> Decoder:
    """Kolibri 1: EXAONE 4's heads between the norms of GLM-4; experts are chosen by their logits
    and a correction."""
    c = SimpleNamespace(**vars(c) | {"intermediate_size": c.moe_intermediate_size})
    heads = gqa(c, qk_norm=QkNorm(rms(c)), default_head_dim=128)
    window = getattr(c, "sliding_window", 513)
    routing = router(c, score="sigmoid", correction=True, by_logits=True)
    shared = small(c, first(c, "shared_expert_intermediate_size", default=512))
    names = {
        "mixer_post_norm": "post_self_attn_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_post_norm": "post_mlp_layernorm",
    }
    return decoder(
        c,
        heads if window is None else rotating_windows(c, heads, window, 5),
        Moe(routing, small(c), shared=shared),
        style="sandwich",
        names=named(LAYER, **names),
        stacked=FUSED,
        renames=(
            (r"\.moe\.router\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
            (r"\.post_attn_norm\.", ".post_self_attn_layernorm."),
            (r"\.post_ffn_norm\.", ".post_mlp_layernorm."),
        ),
    )
