"""Llamas with multipliers: on embeddings, residuals, attention scores and logits."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
)
from baton_worker.models.families.llama import llama
from baton_worker.spec import Attention, Decoder, Embedding, Ffn, Head, Mask, Mixer, Sinks


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


@architecture("GraniteSWAForCausalLM")
def granite_swa(c: Config) -> Decoder:
    """Granite with windows, sinks and a rope of each layer's own."""
    whole = granite(c)
    head = replace(whole.head, tied=getattr(c, "tie_word_embeddings", True))
    return replace(whole, layers=with_windows(c, whole), head=head, norm=rms(c, 1e-5))


def with_windows(c: Config, whole: Decoder) -> tuple[tuple[Mixer | None, Ffn | None], ...]:
    """The layers with sinks, windows in all but every fourth layer, and a wavelength base each; a
    layer whose base is 0 has no rope."""
    window, listed = getattr(c, "sliding_window", 128), getattr(c, "layer_types", None)
    bases = getattr(c, "layer_rope_theta", None)
    layers = list[tuple[Mixer | None, Ffn | None]]()
    for layer, (mixer, ffn) in enumerate(whole.layers):
        assert isinstance(mixer, Attention) and mixer.rope is not None
        slides = listed[layer] == "sliding_attention" if listed else layer % 4 > 0
        base = mixer.rope.base if bases is None else float(bases[layer])
        turned = replace(mixer.rope, base=base) if base else None
        mask = Mask(window if slides else None)
        layers.append((replace(mixer, rope=turned, mask=mask, sinks=Sinks()), ffn))
    return tuple(layers)


@architecture("HyperCLOVAXForCausalLM")
def hyperclovax(c: Config) -> Decoder:
    """HyperCLOVA X SEED Think: Granite with a norm behind each half, and logits that are multiplied
    where Granite divides."""
    multiplier = getattr(c, "attention_multiplier", None) or gqa(c).scale
    whole = granite(SimpleNamespace(**vars(c) | {"attention_multiplier": multiplier}))
    names = named(
        "model.layers.{layer}",
        mixer_post_norm="post_norm1",
        ffn_norm="post_attention_layernorm",
        ffn_post_norm="post_norm2",
    )
    return replace(
        whole,
        style="sandwich" if getattr(c, "use_post_norm", True) else "pre",
        head=replace(whole.head, scale=float(getattr(c, "logits_scaling", 1.0))),
        tensors=replace(whole.tensors, names=names),
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
