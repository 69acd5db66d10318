"""Decoders of encoder-decoder models in BART's form (Lewis et al. 2019, arXiv:1910.13461): a layer
of the checkpoint is two blocks, attention to tokens, then attention to the states of the encoder
and the feed-forward."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config, decoder, named
from baton_worker.spec import Attention, CrossAttention, Decoder, Mlp, Norm, Projections


def paired_decoder(
    d: Config, prefix: str, length: int, states: int, head: str, **changes: Any
) -> Decoder:
    """The decoder of a config `d` with BART's fields.

    Args:
        prefix: of its tensors.
        length: context length in tokens.
        states: channels of the encoder's states.
        head: name of the language head.
        changes: fields of `spec.Decoder`, `served_length`, `tied` and `key_bias`.
    """
    heads, dim = d.decoder_attention_heads, d.d_model // d.decoder_attention_heads
    biased = Projections(bias=True, output_bias=True, key_bias=changes.pop("key_bias", True))
    self_attention = Attention(heads, heads, dim, 1 / math.sqrt(dim), None, projections=biased)
    across = CrossAttention(heads, heads, dim, 1 / math.sqrt(dim), states, projections=biased)
    ffn = Mlp(d.decoder_ffn_dim, getattr(d, "activation_function", "gelu"), bias=True)
    return decoder(
        SimpleNamespace(
            hidden_size=d.d_model,
            vocab_size=d.vocab_size,
            num_hidden_layers=2 * d.decoder_layers,
            max_position_embeddings=length,
            served_length=changes.pop("served_length", None),
            tie_word_embeddings=changes.pop("tied", False),
        ),
        [self_attention, across] * d.decoder_layers,
        [None, ffn] * d.decoder_layers,
        norm=Norm(1e-5, "layer", bias=True),
        style="cross",
        names=_names(prefix, head),
        **changes,
    )


def embedding_scale(d: Config) -> float:
    """Factor of token embeddings."""
    return math.sqrt(d.d_model) if getattr(d, "scale_embedding", False) else 1.0


def paired_renames(prefix: str, num_layers: int) -> Iterator[tuple[str, str]]:
    """Layers of the checkpoint to pairs of blocks."""
    for layer in range(num_layers):
        first, second = (f"{prefix}.blocks.{2 * layer + half}" for half in (0, 1))
        stem = rf"^{re.escape(prefix)}\.layers\.{layer}\."
        yield rf"{stem}self_attn_layer_norm\.", f"{first}.mixer_norm."
        yield rf"{stem}encoder_attn_layer_norm\.", f"{second}.mixer_norm."
        yield rf"{stem}self_attn\.", f"{first}.self_attn."
        yield stem, f"{second}."


def _names(prefix: str, head: str) -> tuple[tuple[str, str], ...]:
    return named(
        f"{prefix}.blocks.{{layer}}",
        embedding=f"{prefix}.embed_tokens",
        positions=f"{prefix}.embed_positions",
        embedding_norm=f"{prefix}.layernorm_embedding",
        norm=f"{prefix}.layer_norm",
        head=head,
        mixer_norm="mixer_norm",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.out_proj",
        cross_query="encoder_attn.q_proj",
        cross_key="encoder_attn.k_proj",
        cross_value="encoder_attn.v_proj",
        cross_output="encoder_attn.out_proj",
        ffn_norm="final_layer_norm",
        up="fc1",
        down="fc2",
    )
