"""PLaMo 2: heads of Mamba-2 with selection, and attention within a window."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    layer_types,
    named,
    rms,
)
from baton_worker.models.families.gemma import ropes_by_layer_type
from baton_worker.spec import (
    Decoder,
    Fused,
    Mask,
    Mixer,
    Norm,
    QkNorm,
    SelectiveStateSpace,
)

LAYER = "model.layers.layers.{layer}"
NAMES = named(
    LAYER,
    mixer_norm="pre_mixer_norm",
    mixer_post_norm="post_mixer_norm",
    ffn_norm="pre_mlp_norm",
    ffn_post_norm="post_mlp_norm",
    query="mixer.q_proj",
    key="mixer.k_proj",
    value="mixer.v_proj",
    output="mixer.o_proj",
    query_norm="mixer.q_norm",
    key_norm="mixer.k_norm",
    ssm="mixer",
    ssm_gate="mixer.z_proj",
    ssm_x="mixer.x_proj",
    ssm_conv_x="mixer.conv1d",
    ssm_select="mixer.bcdt_proj",
    ssm_step="mixer.dt_proj",
    ssm_step_norm="mixer.dt_norm",
    ssm_write_norm="mixer.B_norm",
    ssm_read_norm="mixer.C_norm",
    ssm_output="mixer.out_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)
_POST_OFFSETS = (1 / 5, 1 / 5**1.5)
"""Of the norms after the halves; the others add 1 to their weights."""
_UNBOUNDED = 10 * 1024 * 1024
"""Tokens of context at least, as the class of the checkpoint has it."""


def is_mamba(c: Config, layer: int) -> bool:
    """Whether a layer has a state space: by default all but every `mamba_step`-th, or but the last
    one."""
    step, kinds = getattr(c, "mamba_step", 2), getattr(c, "layer_types", None)
    if kinds:
        return bool(kinds[layer] == "mamba")
    if not getattr(c, "mamba_enabled", True):
        return False
    if c.num_hidden_layers <= step // 2:
        return layer < int(c.num_hidden_layers) - 1
    attends: bool = layer % step == step // 2
    return not attends


def plamo_mixers(c: Config) -> list[Mixer]:
    """The mixer of each layer. A window of n lets a token see n tokens before itself."""
    head_dim = getattr(c, "hidden_size_per_head", 128)
    named_dim = SimpleNamespace(**vars(c) | {"head_dim": head_dim})
    heads = gqa(named_dim, qk_norm=QkNorm(Norm(1e-6), over="each"))
    window = replace(heads, mask=Mask(getattr(c, "attention_window_size", 2048) + 1))
    scan = SelectiveStateSpace(
        num_heads=getattr(c, "mamba_num_heads", 64),
        head_dim=head_dim,
        state_size=getattr(c, "mamba_d_state", 64),
        step_rank=max(64, c.hidden_size // 16),
        taps=getattr(c, "mamba_d_conv", 4),
        norm=rms(c),
    )
    full = getattr(c, "full_attention_idx", None) or ()
    return [
        scan if is_mamba(c, layer) else heads if layer in full else window
        for layer in range(c.num_hidden_layers)
    ]


@architecture("Plamo2ForCausalLM")
def plamo2(c: Config) -> Decoder:
    """Norms around each half (arXiv:2509.04897); GGUF files have one offset for all of them."""
    most = max(_UNBOUNDED, getattr(c, "max_position_embeddings", 0))
    c = SimpleNamespace(**vars(c) | {"max_position_embeddings": most})
    heads, own = getattr(c, "mamba_num_heads", 64), getattr(c, "norm_offset", None)
    return decoder(
        c,
        plamo_mixers(c),
        glu(c, activation="silu"),
        tied=True,
        norm=rms(c, offset=1.0 if own is None else own),
        style="sandwich",
        post_offsets=_POST_OFFSETS if own is None else (own, own),
        names=NAMES,
        fused=(
            Fused(f"{LAYER}.mixer.qkv_proj", ("query", "key", "value")),
            Fused(f"{LAYER}.mixer.in_proj", ("ssm_gate", "ssm_x"), heads),
            Fused(f"{LAYER}.mlp.gate_up_proj", ("gate", "up")),
        ),
        renames=(
            (r"\.mixer\.([qk])_weight$", r".mixer.\1_norm.weight"),
            (r"\.mixer\.(dt|B|C)_norm_weight$", r".mixer.\1_norm.weight"),
        ),
    )


@architecture("Plamo3ForCausalLM")
def plamo3(c: Config) -> Decoder:
    """PLaMo 3: PLaMo 2 with attention in all layers, and a rope of its own where it has windows."""
    most, norm = getattr(c, "window_size", 2048), rms(c, offset=1.0)
    every = getattr(c, "sliding_window_pattern", 8)
    heads = gqa(c, default_head_dim=128, rope=None, qk_norm=QkNorm(norm))
    ropes = ropes_by_layer_type(_plamo3_ropes(c), heads.head_dim)
    masks = {"full_attention": Mask(), "sliding_attention": Mask(most)}
    own = getattr(c, "post_norm_offset", None)
    return decoder(
        c,
        [replace(heads, rope=ropes[kind], mask=masks[kind]) for kind in layer_types(c, every)],
        glu(c, activation="silu"),
        tied=True,
        norm=norm,
        style="sandwich",
        post_offsets=_POST_OFFSETS if own is None else (own, own),
        names=NAMES,
        fused=(
            Fused(f"{LAYER}.mixer.qkv_proj", ("query", "key", "value")),
            Fused(f"{LAYER}.mlp.gate_up_proj", ("gate", "up")),
        ),
    )


def _plamo3_ropes(c: Config) -> Config:
    """With the names that others have for the base of local ropes and for YaRN."""
    fields = vars(c) | {"rope_local_base_freq": getattr(c, "rope_local_theta", 10_000.0)}
    factor = getattr(c, "rope_scaling_factor", 1)
    if factor != 1 and not getattr(c, "rope_scaling", None):
        fields["rope_scaling"] = SimpleNamespace(
            rope_type="yarn",
            factor=float(factor),
            original_max_position_embeddings=c.initial_context_length,
            beta_fast=32.0,
            beta_slow=1.0,
            truncate=False,
        )
    return SimpleNamespace(**fields)
