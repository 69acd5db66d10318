"""Decoders that hear: Whisper's encoder, a projector, and a language model."""

from __future__ import annotations

from baton_worker.models.families.common import Config, architecture, layer_norm
from baton_worker.models.families.vision_common import audio_token, text_model, with_tower
from baton_worker.models.families.whisper_encoder import chunk_frames, whisper_encoder
from baton_worker.spec import (
    AudioStack,
    AudioTower,
    Decoder,
    Dense,
    FramePool,
    Normed,
    Step,
)

_TOWER, _PROJECTOR = "audio_tower", "multi_modal_projector"


@architecture("Qwen2AudioForConditionalGeneration")
def qwen2_audio(c: Config) -> Decoder:
    """Qwen2-Audio (arXiv:2407.10759): the means of two states, normed and projected."""
    decoder = text_model(c, "qwen2")
    stack = whisper_encoder(c.audio_config, _TOWER, final_norm=False)
    linear = Dense(f"{_PROJECTOR}.linear", stack.hidden, decoder.hidden)
    steps = (*_pooled(stack), linear)
    return with_tower(decoder, _hearing(c, stack, steps, decoder.hidden, 151_646))


def _pooled(stack: AudioStack) -> tuple[Step, ...]:
    """The norm of the encoder behind the means of two states each."""
    return FramePool(2), Normed(layer_norm(1e-5), stack.hidden, f"{_TOWER}.layer_norm")


def _hearing(
    c: Config, stack: AudioStack, steps: tuple[Step, ...], hidden: int, token: int
) -> AudioTower:
    """The tower of a config; `token` is the architecture's default."""
    return AudioTower(
        stack=stack,
        projector=steps,
        audio_token=audio_token(c, token),
        hidden=hidden,
        chunk_frames=chunk_frames(stack),
    )
