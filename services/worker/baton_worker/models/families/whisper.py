"""Whisper (Radford et al. 2022, arXiv:2212.04356): speech to text."""

from __future__ import annotations

from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.encoder_decoder import (
    embedding_scale,
    paired_decoder,
    paired_renames,
)
from baton_worker.models.families.vision_common import with_tower
from baton_worker.models.families.whisper_encoder import chunk_frames, whisper_encoder
from baton_worker.spec import AudioTower, Decoder, Embedding, Positions

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
    return with_tower(text, _tower(c), tuple(paired_renames(_DECODER, c.decoder_layers)))


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
