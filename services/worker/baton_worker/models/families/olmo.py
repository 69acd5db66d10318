"""OLMo 1 and 2."""

from __future__ import annotations

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    layer_norm,
    rms,
)
from baton_worker.spec import (
    Decoder,
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
