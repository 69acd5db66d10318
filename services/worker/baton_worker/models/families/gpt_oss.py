"""gpt-oss: sliding windows, sinks, MXFP4 experts."""

from __future__ import annotations

from dataclasses import replace

from baton.errors import ModelError
from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    gqa,
    named,
    rms,
)
from baton_worker.models.families.moe_common import (
    EXPERT_GATE_UP,
    LAYER,
    NORM_EPS,
    router,
)
from baton_worker.spec import (
    Decoder,
    Glu,
    Mask,
    Moe,
    Sinks,
    Stacked,
)


@architecture("GptOssForCausalLM")
def gpt_oss(c: Config) -> Decoder:
    """Its experts come as bfloat16, or as MXFP4 blocks and scales."""
    if getattr(c, "swiglu_alpha", 1.702) != 1.702:
        raise ModelError("This config's swiglu_alpha is not 1.702, the only one that Baton knows.")
    bias = getattr(c, "attention_bias", True)
    norm, window = rms(c, NORM_EPS), getattr(c, "sliding_window", 128)
    heads = gqa(c, bias=bias, output_bias=bias, sinks=Sinks(), default_head_dim=64, base=150_000.0)
    kinds = getattr(c, "layer_types", None) or [
        "full_attention" if layer % 2 else "sliding_attention"
        for layer in range(c.num_hidden_layers)
    ]
    expert = Glu(
        c.intermediate_size,
        "quick_gelu",
        bias=True,
        limit=getattr(c, "swiglu_limit", 7.0),
        limit_first=True,
        up_offset=1.0,
    )
    return decoder(
        c,
        [replace(heads, mask=Mask(window)) if k == "sliding_attention" else heads for k in kinds],
        Moe(router(c, bias=True, norm=1.0), expert),
        norm=norm,
        names=named(LAYER, router="mlp.router"),
        stacked=_gpt_oss_experts(f"{LAYER}.mlp.experts"),
    )


def _gpt_oss_experts(prefix: str) -> tuple[Stacked, ...]:
    gate_up, down = f"{prefix}.gate_up_proj", f"{prefix}.down_proj"
    gate_up_parts, down_parts = EXPERT_GATE_UP, ("expert_down",)
    return (
        Stacked(gate_up, gate_up_parts, interleaved=True, transposed=True),
        Stacked(down, down_parts, transposed=True),
        Stacked(f"{gate_up}_bias", gate_up_parts, suffix="bias", interleaved=True),
        Stacked(f"{down}_bias", down_parts, suffix="bias"),
        Stacked(f"{gate_up}_blocks", gate_up_parts, interleaved=True, scales=f"{gate_up}_scales"),
        Stacked(f"{down}_blocks", down_parts, scales=f"{down}_scales"),
    )
