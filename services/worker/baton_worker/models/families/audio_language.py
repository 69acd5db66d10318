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
    Activated,
    AudioStack,
    AudioTower,
    ChunkRotation,
    Decoder,
    Dense,
    FramePool,
    FrameStack,
    Norm,
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
    return with_tower(decoder, _audio_tower(c, stack, steps, decoder.hidden, 151_646))


@architecture("AudioFlamingo3ForConditionalGeneration")
def audio_flamingo_3(c: Config) -> Decoder:
    """Audio Flamingo 3 (arXiv:2507.08128): chunks of 30 s, each as Qwen2-Audio's."""
    decoder = text_model(c, "qwen2")
    stack = whisper_encoder(c.audio_config, _TOWER, final_norm=False)
    steps = (*_pooled(stack), *_two_layers(c, stack, decoder))
    return with_tower(decoder, _audio_tower(c, stack, steps, decoder.hidden, 151_669))


@architecture("MusicFlamingoForConditionalGeneration")
def music_flamingo(c: Config) -> Decoder:
    """Music Flamingo (arXiv:2511.10289): Audio Flamingo 3 with states that know their time."""
    decoder = audio_flamingo_3(c)
    tower = decoder.tower
    assert isinstance(tower, AudioTower)
    rope_parameters = vars(getattr(c, "rope_parameters", None) or SimpleNamespace())
    share = rope_parameters.get("partial_rotary_factor", getattr(c, "partial_rotary_factor", 0.2))
    rotation = ChunkRotation(
        pairs=(int(tower.stack.hidden * share) + 1) // 2,
        base=float(rope_parameters.get("rope_theta", 1200.0)),
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
    return with_tower(decoder, _audio_tower(c, stack, steps, decoder.hidden, 24))


@architecture("UltravoxModel")
def ultravox(c: Config) -> Decoder:
    """Ultravox (https://github.com/fixie-ai/ultravox): states side by side, a gated layer between
    norms. Zeros fill up the last states of a chunk, where the published code takes states of
    padding from the second chunk of a sound on."""
    if getattr(c, "text_model_id", None) or getattr(c, "audio_model_id", None):
        raise AttributeError(
            "text_config, audio_config and their weights are in other repositories, which "
            "text_model_id and audio_model_id name; save the whole model into one folder"
        )
    if getattr(c, "audio_token_index", None) is None:
        raise AttributeError("audio_token_index, the token in whose place a sound goes")
    if getattr(c, "audio_latency_block_size", None):
        raise AttributeError("audio_latency_block_size other than null is not supported")
    decoder = text_model(c)
    stack = whisper_encoder(c.audio_config, _TOWER)
    steps = _gated_projector(c, stack.hidden, decoder.hidden)
    tower = _audio_tower(c, stack, steps, decoder.hidden, c.audio_token_index)
    return with_tower(decoder, replace(tower, exact=True))


def _gated_projector(c: Config, inputs: int, hidden: int) -> tuple[Step, ...]:
    """Up to version 0.4.1 the second norm is behind the last layer, since 0.5 before it."""
    size, inner = getattr(c, "stack_factor", 8), getattr(c, "hidden_size", 4096)
    act, middle = getattr(c, "projector_act", "swiglu"), getattr(c, "projector_ln_mid", False)
    gated, norm, wide = act == "swiglu", Norm(1e-6), size * inputs
    between = inner // 2 if gated else inner
    end: tuple[Step, ...] = (Dense(f"{_PROJECTOR}.linear_2", between, hidden, bias=False),)
    if middle:
        end = (Normed(norm, between, f"{_PROJECTOR}.ln_mid"), *end)
    else:
        end = (*end, Normed(norm, hidden, f"{_PROJECTOR}.ln_post"))
    return (
        FrameStack(size, padded=True),
        Normed(norm, wide, f"{_PROJECTOR}.ln_pre"),
        Dense(f"{_PROJECTOR}.linear_1", wide, inner, bias=False),
        Activated("silu" if gated else act, gated),
        *end,
    )


def _two_layers(
    c: Config, stack: AudioStack, decoder: Decoder, *, stacked: int = 1, bias: bool = True
) -> tuple[Step, ...]:
    bias = getattr(c, "projector_bias", bias)
    return two_layers(c, stacked * stack.hidden, decoder.hidden, bias=bias)


def _pooled(stack: AudioStack) -> tuple[Step, ...]:
    """The norm of the encoder behind the means of two states each."""
    return FramePool(2), Normed(layer_norm(1e-5), stack.hidden, f"{_TOWER}.layer_norm")


def _audio_tower(
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
