"""Llamas with multipliers: on embeddings, residuals, attention scores and logits."""

from __future__ import annotations

import math
from dataclasses import replace

from baton_worker.models.families.common import Config, architecture, decoder, glu, gqa
from baton_worker.models.families.llama import llama
from baton_worker.spec import Decoder, Embedding, Head


@architecture("GraniteForCausalLM")
def granite(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    scale = float(getattr(c, "attention_multiplier", 1.0))
    return decoder(
        c,
        gqa(c, bias=bias, output_bias=bias, scale=scale),
        glu(c, bias=getattr(c, "mlp_bias", False)),
        embedding=Embedding(scale=float(getattr(c, "embedding_multiplier", 1.0))),
        residual_scale=float(getattr(c, "residual_multiplier", 1.0)),
        head=Head(scale=1.0 / getattr(c, "logits_scaling", 1.0)),
    )


@architecture("MiniCPMForCausalLM")
def minicpm(c: Config) -> Decoder:
    return decoder(
        c,
        gqa(c),
        glu(c),
        tied=True,
        embedding=Embedding(scale=float(c.scale_emb)),
        residual_scale=c.scale_depth / math.sqrt(c.num_hidden_layers),
        head=Head(scale=c.dim_model_base / c.hidden_size),
    )


@architecture("TeleFLMForCausalLM")
def teleflm(c: Config) -> Decoder:
    """muP (arXiv:2304.06875): multipliers on inputs and logits."""
    if not getattr(c, "use_mup", False):
        return llama(c)
    spec = llama(c)
    head = replace(spec.head, scale=c.output_mult / c.mup_scale_factor)
    return replace(spec, head=head, embedding=Embedding(scale=float(c.input_mult)))
