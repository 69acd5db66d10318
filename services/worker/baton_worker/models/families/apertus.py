"""Apertus: Llama with normed queries and keys, and feed-forwards without a gate."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    gqa,
    mlp,
    named,
    rms,
)
from baton_worker.spec import Decoder, Ffn, QkNorm, XieluMlp

_ROPE = SimpleNamespace(
    rope_type="llama3",
    rope_theta=12e6,
    factor=8.0,
    original_max_position_embeddings=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)
"""The rope of a config that has none."""


@architecture("ApertusForCausalLM")
def apertus(c: Config) -> Decoder:
    """Apertus (arXiv:2509.14233)."""
    if not getattr(c, "rope_parameters", None) and not getattr(c, "rope_scaling", None):
        c = SimpleNamespace(**vars(c) | {"rope_parameters": _ROPE})
    bias, norm = getattr(c, "attention_bias", False), rms(c, 1e-5)
    heads = gqa(c, base=12e6, bias=bias, output_bias=bias, qk_norm=QkNorm(norm))
    names = named(
        "model.layers.{layer}",
        mixer_norm="attention_layernorm",
        ffn_norm="feedforward_layernorm",
    )
    return decoder(c, heads, _ffns(c), norm=norm, names=names)


def _ffns(c: Config) -> list[Ffn]:
    """The feed-forward of each layer. GGUF files have the parameters of its activation beside their
    tensors: `xielu_parameters`, a list for each layer."""
    if getattr(c, "hidden_act", "xielu") != "xielu":
        return [mlp(c, bias=False)] * c.num_hidden_layers
    listed = getattr(c, "xielu_parameters", None) or [None] * c.num_hidden_layers
    return [XieluMlp(c.intermediate_size, parameters=values and tuple(values)) for values in listed]


@architecture("Apertus1p5TextForCausalLM")
def apertus1p5(c: Config) -> Decoder:
    """Texts of Apertus 1.5, whose head may have no rows for the last tokens: codes of images and
    sounds, which stand in prompts alone."""
    whole, rows = apertus(c), getattr(c, "output_vocab_size", None)
    return replace(whole, head=replace(whole.head, unsaid=c.vocab_size - (rows or c.vocab_size)))
