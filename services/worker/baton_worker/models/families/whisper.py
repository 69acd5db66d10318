"""Whisper (Radford et al. 2022, arXiv:2212.04356): speech to text."""

from __future__ import annotations

from dataclasses import replace

from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.encoder_decoder import (
    embedding_scale,
    paired_decoder,
    paired_renames,
)
from baton_worker.models.families.vision_common import with_tower
from baton_worker.models.families.whisper_encoder import chunk_frames, whisper_encoder
from baton_worker.spec import AudioTower, CrossAttention, Decoder, Embedding, Positions

_DECODER, _ENCODER = "model.decoder", "model.encoder"


@architecture("WhisperForConditionalGeneration")
def whisper(c: Config) -> Decoder:
    """All tokens of a prompt attend to the chunk that its first one stands for: the start of a
    transcript, or that of the text before."""
    text = paired_decoder(
        c,
        _DECODER,
        c.max_target_positions,
        c.d_model,
        "proj_out",
        served_length=getattr(c, "served_length", None),
        key_bias=False,
        tied=getattr(c, "tie_word_embeddings", True),
        embedding=Embedding(scale=embedding_scale(c), positions=Positions(c.max_target_positions)),
    )
    text = _aligning(text, c)
    return with_tower(text, _tower(c), tuple(paired_renames(_DECODER, c.decoder_layers)))


def _aligning(text: Decoder, c: Config) -> Decoder:
    """The decoder with the heads that say where in a recording a token is, if its
    generation_config.json lists heads that it has."""
    listed = getattr(c, "alignment_heads", None) or ()
    heads = [(layer, head) for layer, head in listed]
    ranges = range(c.decoder_layers), range(c.decoder_attention_heads)
    if not heads or not all(layer in ranges[0] and head in ranges[1] for layer, head in heads):
        return text
    layers = list(text.layers)
    for layer in {layer for layer, _ in heads}:
        mixer, ffn = layers[2 * layer + 1]
        assert isinstance(mixer, CrossAttention), "see `paired_decoder`"
        in_layer = tuple(head for at, head in heads if at == layer)
        layers[2 * layer + 1] = replace(mixer, alignment_heads=in_layer), ffn
    width = getattr(c, "median_filter_width", 7)
    return replace(text, layers=tuple(layers), alignment_filter=width)


def _tower(c: Config) -> AudioTower:
    """The encoder's states as they are."""
    stack = whisper_encoder(c, _ENCODER)
    start = c.decoder_start_token_id
    previous = getattr(c, "added_tokens", {}).get("<|startofprev|>", start)
    return AudioTower(
        stack=stack,
        projector=(),
        audio_token=start,
        hidden=stack.hidden,
        chunk_frames=chunk_frames(stack),
        previous_token=previous,
        cross=True,
    )
