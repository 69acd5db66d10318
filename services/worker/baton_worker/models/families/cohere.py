"""Command R: parallel blocks, LayerNorm without bias, interleaved rope, scaled logits."""

from __future__ import annotations

from baton_worker.models.families.common import Config, architecture, decoder, glu, gqa, layer_norm
from baton_worker.models.spec import Decoder, Head


@architecture("CohereForCausalLM")
def cohere(c: Config) -> Decoder:
    norm = layer_norm(getattr(c, "layer_norm_eps", 1e-5), bias=False)
    bias = getattr(c, "attention_bias", False)
    heads = gqa(
        c,
        base=500_000.0,
        interleaved=True,
        bias=bias,
        output_bias=bias,
        qk_norm=norm if getattr(c, "use_qk_norm", False) else None,
        qk_norm_over="each",
    )
    head = Head(scale=getattr(c, "logit_scale", 0.0625))
    return decoder(c, heads, glu(c), tied=True, norm=norm, style="parallel", head=head)
