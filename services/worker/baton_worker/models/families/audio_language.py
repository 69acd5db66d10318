"""Decoders that hear: Whisper's encoder, a projector, and a language model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.common import Config, architecture, layer_norm
from baton_worker.models.families.vision_common import (
    audio_token,
    text_model,
    two_layers,
    with_tower,
)
from baton_worker.models.families.whisper_encoder import chunk_frames, whisper_encoder
from baton_worker.spec import (
    AudioStack,
    AudioTower,
    ChunkRotation,
    Decoder,
    Dense,
    FramePool,
    FrameStack,
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


@architecture("AudioFlamingo3ForConditionalGeneration")
def audio_flamingo_3(c: Config) -> Decoder:
    """Audio Flamingo 3 (arXiv:2507.08128): chunks of 30 s, each as Qwen2-Audio's."""
    decoder = text_model(c, "qwen2")
    stack = whisper_encoder(c.audio_config, _TOWER, final_norm=False)
    steps = (*_pooled(stack), *_two_layers(c, stack, decoder))
    return with_tower(decoder, _hearing(c, stack, steps, decoder.hidden, 151_669))


@architecture("MusicFlamingoForConditionalGeneration")
def music_flamingo(c: Config) -> Decoder:
    """Music Flamingo (arXiv:2511.10289): Audio Flamingo 3 with states that know their time."""
    decoder = audio_flamingo_3(c)
    tower = decoder.tower
    assert isinstance(tower, AudioTower)
    given = vars(getattr(c, "rope_parameters", None) or SimpleNamespace())
    share = given.get("partial_rotary_factor", getattr(c, "partial_rotary_factor", 0.2))
    rotation = ChunkRotation(
        pairs=(int(tower.stack.hidden * share) + 1) // 2,
        base=float(given.get("rope_theta", 1200.0)),
        seconds=4 * getattr(c, "audio_frame_step", 0.01),
    )
    pooled, layers = tower.projector[:2], tower.projector[2:]
    tower = replace(tower, projector=pooled, rotation=rotation, finish=layers)
    return replace(decoder, tower=tower)


@architecture("VoxtralForConditionalGeneration")
def voxtral(c: Config) -> Decoder:
    """Voxtral (arXiv:2507.13264): whole chunks, padding included; four states side by side."""
    decoder = text_model(c, "llama")
    stack = whisper_encoder(c.audio_config, _TOWER)
    size = getattr(c.audio_config, "intermediate_size", 4 * stack.hidden) // stack.hidden
    steps = FrameStack(size), *_two_layers(c, stack, decoder, stacked=size, bias=False)
    return with_tower(decoder, _hearing(c, stack, steps, decoder.hidden, 24))


def _two_layers(
    c: Config, stack: AudioStack, decoder: Decoder, *, stacked: int = 1, bias: bool = True
) -> tuple[Step, ...]:
    bias = getattr(c, "projector_bias", bias)
    return two_layers(c, stacked * stack.hidden, decoder.hidden, bias=bias)


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
