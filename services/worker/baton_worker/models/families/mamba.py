"""Decoders with selective state spaces (Mamba-1): Mamba, FalconMamba, Jamba."""

from __future__ import annotations

import math
from types import SimpleNamespace

from baton_worker.models.families.common import Config, architecture, decoder, glu, gqa, named, rms
from baton_worker.models.families.moe_common import (
    LAYER,
    router,
    sparse_where,
    stacked,
)
from baton_worker.spec import (
    Decoder,
    Fused,
    Mamba,
    Mixer,
    Moe,
    Norm,
)

MIXER = "backbone.layers.{layer}.mixer"
MAMBA_NAMES = named(
    "backbone.layers.{layer}",
    embedding="backbone.embeddings",
    norm="backbone.norm_f",
    mixer_norm="norm",
    conv="mixer.conv1d",
    scan_select="mixer.x_proj",
    scan_step="mixer.dt_proj",
    scan_rates="mixer.A_log",
    scan_skip="mixer.D",
    scan_output="mixer.out_proj",
)
JAMBA_NAMES = named(
    LAYER,
    norm="model.final_layernorm",
    ffn_norm="pre_ff_layernorm",
    conv="mamba.conv1d",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    router="feed_forward.router",
    expert_gate="feed_forward.experts.{expert}.gate_proj",
    expert_up="feed_forward.experts.{expert}.up_proj",
    expert_down="feed_forward.experts.{expert}.down_proj",
)


def fused(mixer: str) -> tuple[Fused, ...]:
    """The tensor that holds the first projection, inputs and gate."""
    return (Fused(f"{mixer}.in_proj", ("scan_input", "scan_gate")),)


def step_rank(c: Config, rank: int | str) -> int:
    """Rank of the time-step projection."""
    return math.ceil(c.hidden_size / 16) if rank == "auto" else int(rank)


def mamba_body(c: Config, trained: int, norm: Norm | None = None) -> Decoder:
    """State-space layers only; configs lack the context length, given by `trained`."""
    c = SimpleNamespace(**{"max_position_embeddings": trained} | vars(c))
    mixer = Mamba(
        int(getattr(c, "expand", 2) * c.hidden_size),
        getattr(c, "state_size", 16),
        step_rank(c, getattr(c, "time_step_rank", "auto")),
        getattr(c, "conv_kernel", 4),
        getattr(c, "use_conv_bias", True),
        getattr(c, "use_bias", False),
        norm,
        getattr(c, "hidden_act", "silu"),
    )
    return decoder(
        c,
        mixer,
        [None] * c.num_hidden_layers,
        norm=Norm(getattr(c, "layer_norm_epsilon", 1e-5)),
        tied=True,
        names=MAMBA_NAMES,
        fused=fused(MIXER),
        renames=((r"^backbone\.embedding\.", "backbone.embeddings."),),
    )


@architecture("MambaForCausalLM")
def mamba(c: Config) -> Decoder:
    return mamba_body(c, 2048)


@architecture("FalconMambaForCausalLM")
def falcon_mamba(c: Config) -> Decoder:
    """Time steps, B and C are normed (arXiv:2410.05355)."""
    return mamba_body(c, 8192, Norm(getattr(c, "mixer_rms_eps", 1e-6), scaled=False))


@architecture("JambaForCausalLM")
def jamba(c: Config) -> Decoder:
    """One attention layer without rope among several state-space layers, and experts in every other
    layer (arXiv:2403.19887)."""
    norm = rms(c)
    mixer = Mamba(
        getattr(c, "mamba_expand", 2) * c.hidden_size,
        getattr(c, "mamba_d_state", 16),
        step_rank(c, getattr(c, "mamba_dt_rank", "auto")),
        getattr(c, "mamba_d_conv", 4),
        getattr(c, "mamba_conv_bias", True),
        getattr(c, "mamba_proj_bias", False),
        norm,
        getattr(c, "hidden_act", "silu"),
    )
    heads, layers = gqa(c, rope=None), range(c.num_hidden_layers)
    period, offset = getattr(c, "attn_layer_period", 8), getattr(c, "attn_layer_offset", 4)
    mixers: list[Mixer] = [heads if n % period == offset else mixer for n in layers]
    period, offset = getattr(c, "expert_layer_period", 2), getattr(c, "expert_layer_offset", 1)
    sparse = [c.num_experts > 1 and n % period == offset for n in layers]
    return decoder(
        c,
        mixers,
        sparse_where(sparse, Moe(router(c, norm=None), glu(c)), glu(c)),
        norm=norm,
        names=JAMBA_NAMES,
        fused=fused(f"{LAYER}.mamba"),
        stacked=stacked(f"{LAYER}.feed_forward.experts"),
    )
