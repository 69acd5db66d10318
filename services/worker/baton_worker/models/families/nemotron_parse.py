"""Nemotron Parse: a page through RADIO (arXiv:2312.06709) and a decoder without positions, each
layer of which attends to the page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config, architecture, decoder, named
from baton_worker.models.families.nemotron_vision import radio
from baton_worker.models.families.vision_common import with_tower
from baton_worker.spec import (
    Attention,
    CrossAttention,
    Decoder,
    Embedding,
    Mlp,
    Norm,
    Projections,
    SummaryNeck,
    VisionTower,
)

_NECK = 1024
"""Channels of a vector of the page."""
_BLOCK = "decoder.blocks.{layer}"
_NAMES = named(
    _BLOCK,
    embedding="decoder.embed_tokens",
    embedding_norm="decoder.layernorm_embedding",
    norm="decoder.layer_norm",
    head="lm_head",
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

_RADIO = "vision_model.radio_model"
_UNUSED = ("decoder.embed_positions.", f"{_RADIO}.input_conditioner.", f"{_RADIO}.summary_idxs")


@architecture("NemotronParseForConditionalGeneration")
def nemotron_parse(c: Config) -> Decoder:
    """A layer of the checkpoint is two blocks: attention to tokens, then attention to the page and
    the feed-forward. The token that begins a prompt stands for the page."""
    d = c.decoder
    heads, dim = d.decoder_attention_heads, d.d_model // d.decoder_attention_heads
    biased = Projections(bias=True, output_bias=True)
    own = Attention(heads, heads, dim, 1 / math.sqrt(dim), None, projections=biased)
    across = CrossAttention(heads, heads, dim, 1 / math.sqrt(dim), _NECK, projections=biased)
    ffn = Mlp(d.decoder_ffn_dim, getattr(d, "activation_function", "gelu"), bias=True)
    norm = Norm(1e-5, "layer", bias=True)
    scale = math.sqrt(d.d_model) if getattr(d, "scale_embedding", False) else 1.0
    length = getattr(c, "max_sequence_length", None) or d.max_position_embeddings
    text = decoder(
        SimpleNamespace(
            hidden_size=d.d_model,
            vocab_size=d.vocab_size,
            num_hidden_layers=2 * d.decoder_layers,
            max_position_embeddings=length,
            served_length=getattr(c, "served_length", None),
            tie_word_embeddings=False,
        ),
        [own, across] * d.decoder_layers,
        [None, ffn] * d.decoder_layers,
        norm=norm,
        style="cross",
        embedding=Embedding(scale=scale, norm=norm),
        names=_NAMES,
    )
    renames = ((r"^encoder\.model_encoder\.", "vision_model."), *_renames(d.decoder_layers))
    return with_tower(text, _tower(c, d), renames, _UNUSED)


def _renames(num_layers: int) -> Iterator[tuple[str, str]]:
    """Layers of the checkpoint to pairs of blocks."""
    for layer in range(num_layers):
        first, second = f"decoder.blocks.{2 * layer}", f"decoder.blocks.{2 * layer + 1}"
        stem = rf"^decoder\.layers\.{layer}\."
        yield rf"{stem}self_attn_layer_norm\.", f"{first}.mixer_norm."
        yield rf"{stem}encoder_attn_layer_norm\.", f"{second}.mixer_norm."
        yield rf"{stem}self_attn\.", f"{first}.self_attn."
        yield stem, f"{second}."


def _tower(c: Config, d: Any) -> VisionTower:
    """All states of RADIO, its class tokens included, through the neck."""
    encoder = c.encoder
    stack = radio(
        SimpleNamespace(
            vision_config=encoder, force_image_size=max(c.image_size), patch_size=encoder.patch_size
        )
    )
    teachers = encoder.args.teachers
    summaries = tuple(n for n, one in enumerate(teachers) if getattr(one, "use_summary", True))
    neck = SummaryNeck("encoder", stack.hidden, _NECK, stack.patches.leading, summaries)
    start = getattr(c, "decoder_start_token_id", None)
    return VisionTower(
        stack=stack,
        projector=(neck,),
        image_token=d.eos_token_id if start is None else start,
        hidden=_NECK,
        cross=True,
    )
