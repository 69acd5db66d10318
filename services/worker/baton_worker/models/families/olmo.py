"""OLMo 1 to 3."""

from __future__ import annotations

from dataclasses import replace

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    layer_norm,
    layer_types,
    rms,
)
from baton_worker.models.families.gemma import ropes_by_layer_type
from baton_worker.spec import (
    Decoder,
    Mask,
    QkNorm,
)


@architecture("OlmoForCausalLM")
def olmo(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    heads = gqa(c, bias=bias, output_bias=bias, clip=getattr(c, "clip_qkv", None))
    return decoder(c, heads, glu(c), norm=layer_norm(1e-5, scaled=False, bias=False))


@architecture("Olmo2ForCausalLM")
def olmo2(c: Config) -> Decoder:
    bias, norm = getattr(c, "attention_bias", False), rms(c, 1e-5)
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=QkNorm(norm, over="full"))
    return decoder(c, heads, glu(c), norm=norm, style="post")


@architecture("Olmo3ForCausalLM")
def olmo3(c: Config) -> Decoder:
    """OLMo 2 with windows; only the rope of layers without one is scaled."""
    bias, norm = getattr(c, "attention_bias", False), rms(c, 1e-5)
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=QkNorm(norm, over="full"), rope=None)
    base = getattr(c, "rope_theta", None) or 500_000.0
    ropes = ropes_by_layer_type(c, heads.head_dim, base=base, local_base=base)
    windows = {"full_attention": None, "sliding_attention": getattr(c, "sliding_window", 4096)}
    mixers = [
        replace(heads, rope=ropes[kind], mask=Mask(windows[kind])) for kind in layer_types(c, 4)
    ]
    return decoder(c, mixers, glu(c), norm=norm, style="post")
