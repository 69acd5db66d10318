"""Llama 4."""

from __future__ import annotations

from dataclasses import replace

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
    rotated,
)
from baton_worker.models.families.moe_common import (
    EXPERT_GATE_UP,
    LAYER,
    NORM_EPS,
    router,
    small,
    sparse_where,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Mask,
    Moe,
    QkNorm,
    Scores,
    Stacked,
)


@architecture("Llama4ForCausalLM")
def llama4(c: Config) -> Decoder:
    count, bias = c.num_hidden_layers, getattr(c, "attention_bias", False)
    norm = rms(c, NORM_EPS)
    step = getattr(c, "interleave_moe_layer_step", 1)
    sparse = getattr(c, "moe_layers", None)
    sparse = range(step - 1, count, step) if sparse is None else sparse
    heads = gqa(c, bias=bias, output_bias=bias, interleaved=True, base=500_000.0)
    names = {
        f"{kind}{role}": f"feed_forward.{where}{role}_proj"
        for kind, where in (
            ("", ""),
            ("expert_", "experts.{expert}."),
            ("shared_", "shared_expert."),
        )
        for role in ("gate", "up", "down")
    }
    experts_ = f"{LAYER}.feed_forward.experts"
    moe = Moe(router(c, score="sigmoid"), glu(c), shared=glu(c), weigh_input=True)
    return decoder(
        c,
        [_llama4_heads(c, heads, turns) for turns in rotated(c)],
        sparse_where(
            [layer in sparse for layer in range(count)], moe, small(c, c.intermediate_size_mlp)
        ),
        norm=norm,
        names=named(LAYER, router="feed_forward.router", **names),
        stacked=(
            Stacked(f"{experts_}.gate_up_proj", EXPERT_GATE_UP, transposed=True),
            Stacked(f"{experts_}.down_proj", ("expert_down",), transposed=True),
        ),
    )


def _llama4_heads(c: Config, heads: Attention, turns: bool) -> Attention:
    """Layers with rope use chunked attention; the others are global with a temperature that grows
    with the position."""
    if turns:
        norm = QkNorm(rms(c, NORM_EPS, scaled=False), after_rope=True)
        normed = norm if getattr(c, "use_qk_norm", True) else None
        chunk = getattr(c, "attention_chunk_size", 8192)
        return replace(heads, mask=Mask(chunk=chunk), qk_norm=normed)
    temperature = (getattr(c, "attn_scale", 0.1), float(getattr(c, "floor_scale", 8192)), 1)
    tuned = getattr(c, "attn_temperature_tuning", True)
    return replace(heads, rope=None, scores=Scores(temperature=temperature if tuned else None))
