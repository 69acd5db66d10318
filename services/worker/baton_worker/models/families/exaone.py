"""EXAONE 3 and 4."""

from __future__ import annotations

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
    rotating_windows,
    spelled,
)
from baton_worker.spec import (
    Decoder,
    QkNorm,
)


@architecture("ExaoneForCausalLM")
def exaone(c: Config) -> Decoder:
    c = spelled(
        c,
        num_hidden_layers="num_layers",
        rms_norm_eps="layer_norm_epsilon",
        hidden_act="activation_function",
    )
    names = named(
        "transformer.h.{layer}",
        embedding="transformer.wte",
        norm="transformer.ln_f",
        mixer_norm="ln_1",
        query="attn.attention.q_proj",
        key="attn.attention.k_proj",
        value="attn.attention.v_proj",
        output="attn.attention.out_proj",
        ffn_norm="ln_2",
        gate="mlp.c_fc_0",
        up="mlp.c_fc_1",
        down="mlp.c_proj",
    )
    return decoder(c, gqa(c), glu(c), names=names)


@architecture("Exaone4ForCausalLM")
def exaone4(c: Config) -> Decoder:
    """Windowed layers have rope; global ones do not, unless no layer is windowed."""
    window, norm = getattr(c, "sliding_window", 4096), rms(c, 1e-5)
    heads = gqa(c, qk_norm=QkNorm(norm))
    pattern = getattr(c, "sliding_window_pattern", 4)
    if isinstance(pattern, str):  # "LLLG": three local layers, then a global one
        pattern = pattern.index("G") + 1
    mixers = rotating_windows(c, heads, window, pattern) if window else heads
    return decoder(c, mixers, glu(c), norm=norm, style="post")
