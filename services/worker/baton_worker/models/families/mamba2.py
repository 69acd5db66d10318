"""Mamba-2, and the decoders that mix it with attention: Bamba, Falcon-H1, Granite 4, Nemotron-H."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
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
)
from baton_worker.models.families.granite import granite_body, granite_heads
from baton_worker.models.families.moe_common import (
    LAYER,
    first,
    no_auxiliary_loss,
    router,
    small,
)
from baton_worker.spec import (
    Blend,
    Decoder,
    Embedding,
    Ffn,
    Fused,
    GatedNorm,
    Head,
    Mixer,
    Mlp,
    Moe,
    Norm,
    Stacked,
    StateSpace,
)
from baton_worker.spec.names import DEFAULT

BLOCK = "backbone.layers.{layer}"
PROJECTED = ("ssm_gate", "ssm_x", "ssm_b", "ssm_c", "ssm_dt")
CONVOLVED = ("ssm_conv_x", "ssm_conv_b", "ssm_conv_c")
MODULE = {"ssm": "", "ssm_norm": ".norm", "ssm_output": ".out_proj"}
ALL = (0.0, float("inf"))


def fused(module: str) -> tuple[Fused, ...]:
    """The projection and the convolution of a mixer, each one tensor of the checkpoint."""
    return Fused(f"{module}.in_proj", PROJECTED), Fused(f"{module}.conv1d", CONVOLVED)


def limits(bounds: Any) -> tuple[float, float]:
    """Bounds of dt; unbounded by default."""
    least, most = (_number(bound) for bound in bounds or ALL)
    return least, most


def _number(value: Any) -> float:
    """JSON has no infinity; transformers writes {"__float__": "Infinity"}."""
    fields = vars(value) if isinstance(value, SimpleNamespace) else {"__float__": value}
    return float(fields["__float__"])


def state_space(c: Config, *, norm_eps: float) -> StateSpace:
    """The mixer of configurations whose fields begin with `mamba_`."""
    width = int(first(c, "mamba_expand", default=2) * c.hidden_size)
    width = getattr(c, "mamba_d_ssm", None) or width
    num_heads = first(c, "mamba_n_heads", default=128)
    groups = first(c, "mamba_n_groups", default=1)
    return StateSpace(
        num_heads=num_heads,
        head_dim=width // num_heads,
        num_groups=groups,
        state_size=first(c, "mamba_d_state", default=256),
        taps=first(c, "mamba_d_conv", default=4),
        norm=GatedNorm(norm_eps, groups),
        limits=limits(getattr(c, "time_step_limit", None)),
        bias=getattr(c, "mamba_proj_bias", False),
        conv_bias=getattr(c, "mamba_conv_bias", True),
        activation=getattr(c, "hidden_act", "silu"),
    )


def own_state_space(c: Config, **changes: Any) -> StateSpace:
    """The mixer of configurations whose fields have the names of Mamba-2's own."""
    groups = first(c, "n_groups", "mamba_n_groups", default=8)
    values: dict[str, Any] = {
        "num_groups": groups,
        "taps": c.conv_kernel,
        "norm": GatedNorm(_eps(c), groups),
        "bias": getattr(c, "use_bias", False),
        "conv_bias": getattr(c, "use_conv_bias", True),
    }
    return StateSpace(**values | changes)


def _eps(c: Config) -> float:
    eps: float = first(c, "layer_norm_epsilon", "rms_norm_eps", default=1e-5)
    return eps


def backbone(**roles: str) -> tuple[tuple[str, str], ...]:
    """The names of a stack in which each layer has one norm and one mixer."""
    module = {role: f"mixer{suffix}" for role, suffix in MODULE.items()}
    embedding, norm = "backbone.embeddings", "backbone.norm_f"
    return named(BLOCK, embedding=embedding, norm=norm, mixer_norm="norm", **module, **roles)


@architecture("Mamba2ForCausalLM")
def mamba2(c: Config) -> Decoder:
    """Mixers only."""
    c.max_position_embeddings = first(c, "max_position_embeddings", default=1 << 20)
    mixer = own_state_space(
        c,
        num_heads=c.num_heads,
        head_dim=c.head_dim,
        state_size=c.state_size,
        limits=limits(getattr(c, "time_step_limit", None)),
        activation=c.hidden_act,
    )
    return decoder(
        c,
        mixer,
        [None] * c.num_hidden_layers,
        norm=Norm(_eps(c)),
        names=backbone(),
        fused=fused(f"{BLOCK}.mixer"),
    )


@architecture("BambaForCausalLM")
def bamba(c: Config) -> Decoder:
    """Half of each head is rotated by default."""
    bias = getattr(c, "attention_bias", False)
    heads = gqa(c, bias=bias, output_bias=bias, partial=0.5)
    norm = rms(c, 1e-5)
    mixer = state_space(c, norm_eps=norm.eps)
    full_attention = set(getattr(c, "attn_layer_indices", None) or ())
    layers: list[Mixer] = [
        heads if layer in full_attention else mixer for layer in range(c.num_hidden_layers)
    ]
    return decoder(
        c,
        layers,
        glu(c, bias=getattr(c, "mlp_bias", False)),
        norm=norm,
        names=named(
            LAYER,
            norm="model.final_layernorm",
            ffn_norm="pre_ff_layernorm",
            gate="feed_forward.gate_proj",
            up="feed_forward.up_proj",
            down="feed_forward.down_proj",
        ),
        fused=fused(f"{LAYER}.mamba"),
    )


_PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}


def nemotron_kinds(c: Config) -> list[str]:
    """The type of each Nemotron-H layer: from its pattern, or from a list."""
    pattern = getattr(c, "hybrid_override_pattern", None)
    if pattern is not None:
        return [_PATTERN[letter] for letter in pattern]
    kinds = first(c, "layers_block_type", "layer_types")
    return [_KINDS.get(kind, kind) for kind in kinds]


def nemotron_ffn(c: Config, size: int) -> Mlp:
    """An ungated feed-forward."""
    activation = getattr(c, "mlp_hidden_act", "relu2")
    return Mlp(size, activation, getattr(c, "mlp_bias", False))


def nemotron_moe(c: Config) -> Moe:
    """Ungated experts, on fewer channels than the stream if the config has a latent size."""
    width = getattr(c, "moe_latent_size", None)
    if width is not None and getattr(c, "mlp_bias", False):
        raise ModelError(
            "Baton cannot serve Nemotron-H checkpoints whose experts are narrow and have biases."
        )
    shared = nemotron_ffn(c, c.moe_shared_expert_intermediate_size)
    # The transformers class has no expert biases, even with `mlp_bias`.
    expert = replace(nemotron_ffn(c, c.moe_intermediate_size), bias=False)
    return Moe(no_auxiliary_loss(c), expert, shared=shared, width=width)


NEMOTRON_NAMES = backbone(
    ffn_norm="norm",
    query="mixer.q_proj",
    key="mixer.k_proj",
    value="mixer.v_proj",
    output="mixer.o_proj",
    up="mixer.up_proj",
    down="mixer.down_proj",
    router="mixer.gate",
    router_correction="mixer.gate.e_score_correction_bias",
    experts_in="mixer.fc1_latent_proj",
    experts_out="mixer.fc2_latent_proj",
    expert_up="mixer.experts.{expert}.up_proj",
    expert_down="mixer.experts.{expert}.down_proj",
    shared_up="mixer.shared_experts.up_proj",
    shared_down="mixer.shared_experts.down_proj",
)


def nemotron_mixer(c: Config) -> StateSpace:
    """Time steps have a lower bound only."""
    return own_state_space(
        c,
        num_heads=c.mamba_num_heads,
        head_dim=c.mamba_head_dim,
        state_size=c.ssm_state_size,
        limits=(getattr(c, "time_step_min", 0.001), float("inf")),
        activation=getattr(c, "mamba_hidden_act", "silu"),
    )


@architecture("NemotronHForCausalLM")
def nemotron_h(c: Config) -> Decoder:
    """Each layer is a mixer or a feed-forward (arXiv:2504.03624), without rope."""
    kinds = nemotron_kinds(c)
    c.num_hidden_layers = len(kinds)
    mixers: dict[str, Mixer] = {
        "linear_attention": nemotron_mixer(c),
        "full_attention": gqa(c, rope=None),
    }
    ffns: dict[str, Ffn] = {"mlp": nemotron_ffn(c, c.intermediate_size)}
    if "moe" in kinds:
        ffns["moe"] = nemotron_moe(c)
    return decoder(
        c,
        [mixers.get(kind) for kind in kinds],
        [ffns.get(kind) for kind in kinds],
        norm=Norm(_eps(c)),
        names=NEMOTRON_NAMES,
        fused=fused(f"{BLOCK}.mixer"),
        stacked=tuple(
            Stacked(f"{BLOCK}.mixer.experts.{role}_proj", (f"expert_{role}",))
            for role in ("up", "down")
        ),
        renames=((r"^model\.", "backbone."),),
        unused=("mtp.",),
    )


@architecture("GraniteMoeHybridForCausalLM")
def granite_hybrid(c: Config) -> Decoder:
    """Granite 4: attention, by default without rope, and routed experts, if any, with a shared
    expert."""
    turned = getattr(c, "position_embedding_type", None) == "rope"
    heads = granite_heads(c) if turned else granite_heads(c, rope=None)
    mixer = state_space(c, norm_eps=rms(c).eps)
    kinds = first(c, "layer_types", "layers_block_type", default=["mamba"] * c.num_hidden_layers)
    full = ("full_attention", "attention")
    shared = small(c, first(c, "shared_intermediate_size", default=1024))
    ffn: Ffn = shared
    c.num_local_experts = first(c, "num_local_experts", default=8)
    if c.num_local_experts:
        ffn = Moe(router(c, norm=1.0), glu(c), shared=shared)
    mixers: list[Mixer] = [heads if kind in full else mixer for kind in kinds]
    return granite_body(c, mixers, ffn, fused(f"{LAYER}.mamba"))


def _mup(c: Config) -> Blend:
    """Multipliers on the inputs and outputs of the halves."""

    def pair(kind: str) -> tuple[float, float]:
        input_scale, output_scale = (
            getattr(c, f"{kind}_{end}_multiplier", 1.0) for end in ("in", "out")
        )
        return input_scale, output_scale

    return Blend(pair("attention"), pair("ssm"), (1.0, _mlp_scales(c)[1]))


def _mlp_scales(c: Config) -> tuple[float, float]:
    """Multipliers on the gate and on the output of a feed-forward."""
    gate, down = getattr(c, "mlp_multipliers", None) or (1.0, 1.0)
    return gate, down


def _falcon_mixer(c: Config) -> StateSpace:
    norm = None
    mixer = state_space(c, norm_eps=rms(c, 1e-5).eps)
    if getattr(c, "mamba_rms_norm", False):
        gate_first = not getattr(c, "mamba_norm_before_gate", True)
        norm = GatedNorm(rms(c, 1e-5).eps, mixer.num_groups, gate_first)
    gate, x, b, c_, dt = getattr(c, "ssm_multipliers", None) or (1.0,) * 5
    return replace(
        mixer,
        norm=norm,
        output_bias=getattr(c, "projectors_bias", False),
        scales=None if {gate, x, b, c_, dt} == {1.0} else (gate, c_, x, b, dt),
    )


@architecture("FalconH1ForCausalLM")
def falcon_h1(c: Config) -> Decoder:
    """Parallel attention and state space: two of our layers form one of the checkpoint's. The key
    multiplier is folded into the attention scale."""
    bias = getattr(c, "attention_bias", False)
    heads = gqa(c, bias=bias, output_bias=bias)
    heads = replace(heads, scale=heads.scale * getattr(c, "key_multiplier", 1.0))
    ffn = replace(glu(c, bias=getattr(c, "mlp_bias", False)), gate_scale=_mlp_scales(c)[0])
    mixers, layers = [_falcon_mixer(c), heads], c.num_hidden_layers
    c.num_hidden_layers = 2 * layers
    block = "model.layers.{pair}"
    names = {role: name.replace("{layer}", "{pair}") for role, name in DEFAULT.items()}
    names |= {
        "norm": "model.final_layernorm",
        "ffn_norm": f"{block}.pre_ff_layernorm",
        **{role: f"{block}.feed_forward.{role}_proj" for role in ("gate", "up", "down")},
    }
    return decoder(
        c,
        mixers * layers,
        [None, ffn] * layers,
        norm=rms(c, 1e-5),
        style="beside",
        blend=_mup(c),
        head=Head(scale=getattr(c, "lm_head_multiplier", 1.0)),
        embedding=Embedding(scale=getattr(c, "embedding_multiplier", 1.0)),
        names=tuple(names.items()),
        fused=fused(f"{block}.mamba"),
    )
