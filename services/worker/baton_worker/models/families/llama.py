"""Llama and the models that differ from it by a bias, a norm or a window."""

from __future__ import annotations

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    rms,
    sliding,
)
from baton_worker.models.spec import Decoder


@architecture("LlamaForCausalLM")
def llama(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    mlp_bias = getattr(c, "mlp_bias", False)
    return decoder(c, gqa(c, bias=bias, output_bias=bias), glu(c, bias=mlp_bias))


@architecture("MistralForCausalLM")
def mistral(c: Config) -> Decoder:
    return decoder(c, gqa(c, window=getattr(c, "sliding_window", 4096)), glu(c))


@architecture("Qwen2ForCausalLM")
def qwen2(c: Config) -> Decoder:
    return decoder(c, sliding(c, gqa(c, bias=True)), glu(c))


@architecture("Qwen3ForCausalLM")
def qwen3(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=rms(c), default_head_dim=128)
    return decoder(c, sliding(c, heads), glu(c))
