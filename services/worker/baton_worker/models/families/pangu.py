"""openPangu: sandwich norms, learned sinks, experts, and latent attention in the largest."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    gqa,
    named,
    rms,
    rope,
)
from baton_worker.models.families.mla import latent
from baton_worker.models.families.moe_common import (
    FUSED,
    LAYER,
    after_dense,
    draft_layers,
    no_auxiliary_loss,
    small,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Mixer,
    Moe,
    QkNorm,
    Sinks,
    Values,
)


@architecture("PanguProMoEV2ForCausalLM")
def pangu_pro_moe(c: Config) -> Decoder:
    if getattr(c, "use_mhc", False) or hasattr(c, "kv_lora_rank"):
        raise ModelError(
            "This openPangu config asks for hyper-connections or latent attention, "
            "which Baton cannot serve under PanguProMoEV2ForCausalLM."
        )
    names = named(LAYER, key_norm="self_attn.k_layernorm")
    return _body(c, _heads(c), names)


@architecture("PanguUltraMoEForCausalLM", "OpenPanguForCausalLM")
def pangu_ultra_moe(c: Config) -> Decoder:
    if getattr(c, "use_mhc", False) or getattr(c, "param_sink_number", 0):
        raise ModelError(
            "This openPangu config asks for hyper-connections or for sinks in its latent "
            "attention, which Baton cannot serve yet."
        )
    return _body(c, latent(c, interleaved=getattr(c, "rope_interleave", True)), ())


def _body(c: Config, heads: Mixer, names: tuple[tuple[str, str], ...]) -> Decoder:
    num_shared = getattr(c, "n_shared_experts", None)
    shared = small(c, c.moe_intermediate_size * num_shared) if num_shared else None
    routing = no_auxiliary_loss(c, correction=getattr(c, "router_enable_expert_bias", False))
    moe = Moe(replace(routing, num_groups=1, top_groups=1), small(c), shared=shared)
    sandwich = getattr(c, "sandwich_norm", False)
    if sandwich:
        names += named(LAYER, ffn_norm="pre_mlp_layernorm", ffn_post_norm="post_mlp_layernorm")
    return decoder(
        c,
        heads,
        after_dense(c, moe, c.num_hidden_layers),
        style="sandwich" if sandwich else "pre",
        names=names,
        stacked=FUSED,
        unused=draft_layers(c),
    )


def _heads(c: Config) -> Attention:
    """Keys are normed, queries are not; the first `qk_rope_dim` channels of a head are rotated."""
    if hasattr(c, "interleaved_sliding_window"):
        raise ModelError("Baton cannot serve openPangu checkpoints with sliding windows yet.")
    head_dim, sink_keys = c.qk_nope_dim + c.qk_rope_dim, getattr(c, "param_sink_number", 0)
    bias = getattr(c, "attention_bias", False) or getattr(c, "bias", False)
    rope_parameters = SimpleNamespace(
        **vars(getattr(c, "rope_scaling", None) or SimpleNamespace(rope_type="default")),
        partial_rotary_factor=c.qk_rope_dim / head_dim,
    )
    return gqa(
        c,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope(
            c,
            head_dim,
            parameters=rope_parameters,
            partial=1.0,
            interleaved=getattr(c, "rope_interleave", True),
        ),
        bias=getattr(c, "qkv_bias", bias),
        output_bias=bias,
        qk_norm=QkNorm(rms(c), keys_only=True),
        sinks=Sinks(sink_keys) if sink_keys else None,
        values=Values(c.v_channels),
    )
