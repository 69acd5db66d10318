"""Nemotron, and the searched variants of Llama with heterogeneous layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    gqa,
    layer_norm,
    mlp,
)
from baton_worker.spec import Attention, Decoder, Glu


@architecture("NemotronForCausalLM")
def nemotron(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    norm = layer_norm(getattr(c, "norm_eps", 1e-5), offset=1.0)
    ffn = mlp(c, bias=getattr(c, "mlp_bias", False), activation="relu2")
    return decoder(c, gqa(c, partial=0.5, bias=bias, output_bias=bias), ffn, norm=norm)


@architecture("DeciLMForCausalLM", "NemotronNASForCausalLM", "NemotronNasForCausalLM")
def decilm(c: Config) -> Decoder:
    """Puzzle (arXiv:2411.19146): head counts and sizes differ per layer; attention or ffn may be
    absent."""
    blocks = c.block_configs
    mixers = [_attention(c, block.attention) for block in blocks]
    return decoder(c, mixers, [_ffn(c, block.ffn) for block in blocks])


def _attention(c: Config, block: Any) -> Attention | None:
    if block.no_op:
        return None
    bias = getattr(c, "attention_bias", False)
    groups = c.num_attention_heads // block.n_heads_in_group
    return replace(gqa(c, bias=bias, output_bias=bias), num_kv_heads=groups)


def _ffn(c: Config, block: Any) -> Glu | None:
    """`ffn_mult` counts a plain feed-forward of the same cost, rounded up to 256 channels."""
    if block.no_op:
        return None
    size = getattr(block, "intermediate_size", None)
    if size is None:
        size = -(-int(2 * block.ffn_mult * c.hidden_size / 3) // 256) * 256
    activation: str = getattr(block, "hidden_act", getattr(c, "hidden_act", "silu"))
    return Glu(size, activation, getattr(c, "mlp_bias", False))
