"""Audio encoders of Qwen2.5-Omni (arXiv:2503.20215), Qwen3-Omni (arXiv:2509.17765) and Qwen3-ASR,
and GLM-ASR, and the latter two's decoders."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config, architecture, layer_norm, rope
from baton_worker.models.families.vision_common import (
    RENAMES,
    audio_token,
    text_model,
    with_tower,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Encoder,
    FrameConvolution,
    FramePool,
    FrameStack,
    FrameStem,
    Head,
    Mlp,
    Normed,
    Projections,
    SpectrogramStem,
    Step,
    TensorLayout,
    WindowedTower,
)

_TOWER = "audio_tower"
_NAMES = {
    "norm": f"{_TOWER}.ln_post",
    "mixer_norm": f"{_TOWER}.layers.{{layer}}.self_attn_layer_norm",
    "query": f"{_TOWER}.layers.{{layer}}.self_attn.q_proj",
    "key": f"{_TOWER}.layers.{{layer}}.self_attn.k_proj",
    "value": f"{_TOWER}.layers.{{layer}}.self_attn.v_proj",
    "output": f"{_TOWER}.layers.{{layer}}.self_attn.out_proj",
    "ffn_norm": f"{_TOWER}.layers.{{layer}}.final_layer_norm",
    "up": f"{_TOWER}.layers.{{layer}}.fc1",
    "down": f"{_TOWER}.layers.{{layer}}.fc2",
}
_GLM_NAMES = {
    "norm": f"{_TOWER}.norm",
    "mixer_norm": f"{_TOWER}.layers.{{layer}}.input_layernorm",
    "query": f"{_TOWER}.layers.{{layer}}.self_attn.q_proj",
    "key": f"{_TOWER}.layers.{{layer}}.self_attn.k_proj",
    "value": f"{_TOWER}.layers.{{layer}}.self_attn.v_proj",
    "output": f"{_TOWER}.layers.{{layer}}.self_attn.o_proj",
    "ffn_norm": f"{_TOWER}.layers.{{layer}}.post_attention_layernorm",
    "up": f"{_TOWER}.layers.{{layer}}.mlp.fc1",
    "down": f"{_TOWER}.layers.{{layer}}.mlp.fc2",
}
_GLM: dict[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "num_key_value_heads": None,
    "hidden_act": "gelu",
    "max_position_embeddings": 1500,
    "num_mel_bins": 128,
}
_LARGE: dict[str, Any] = {
    "num_mel_bins": 128,
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "activation_function": "gelu",
    "output_dim": 3584,
}
_QWEN2_5 = _LARGE | {"n_window": 100}
_QWEN3 = _LARGE | {"n_window": 50, "n_window_infer": 800, "downsample_hidden_size": 480}
_ASR = _QWEN3 | {
    "d_model": 1024,
    "encoder_layers": 24,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
}
"""Defaults of transformers."""


def qwen2_5_omni_audio(c: Config) -> WindowedTower:
    """Convolutions over time; the means of two states, normed and projected."""
    a = _part(c, _QWEN2_5)
    stem = FrameStem(
        (
            FrameConvolution(f"{_TOWER}.conv1", a.num_mel_bins, a.d_model),
            FrameConvolution(f"{_TOWER}.conv2", a.d_model, a.d_model, stride=2),
        )
    )
    steps = (
        FramePool(2),
        Normed(layer_norm(1e-5), a.d_model, f"{_TOWER}.ln_post"),
        Dense(f"{_TOWER}.proj", a.d_model, a.output_dim),
    )
    return WindowedTower(
        stem=stem,
        stack=_stack(a, key_bias=False, final_norm=False),
        projector=steps,
        audio_token=audio_token(c, 151_646),
        hidden=a.output_dim,
        window_frames=2 * a.n_window,
    )


def qwen3_omni_audio(c: Config) -> WindowedTower:
    """Convolutions over time and bins."""
    a = _part(c, _QWEN3)
    return _conv2d_tower(c, a, (f"{_TOWER}.proj1", f"{_TOWER}.proj2"), 151_646)


@architecture("Qwen3ASRForConditionalGeneration")
def qwen3_asr(c: Config) -> Decoder:
    """Qwen3-Omni's encoder beside Qwen3. Its first checkpoints have both in a `thinker`."""
    if part := getattr(c, "thinker_config", None):
        c = SimpleNamespace(**vars(part) | {"served_length": getattr(c, "served_length", None)})
    a, prefix = _part(c, _ASR), "multi_modal_projector"
    names = (f"{prefix}.linear_1", f"{prefix}.linear_2")
    tower = _conv2d_tower(c, a, names, 151_676)
    own = (
        (r"^thinker\.", ""),
        (r"^audio_tower\.proj([12])\.", rf"{prefix}.linear_\1."),
        *RENAMES,
    )
    return with_tower(text_model(c, "qwen3", tied=True), tower, own)


@architecture("GlmAsrForConditionalGeneration")
def glm_asr(c: Config) -> Decoder:
    """Chunks of 30 s, padding included, whose layers have ropes; four states side by side."""
    a = SimpleNamespace(**_GLM | vars(getattr(c, "audio_config", None) or SimpleNamespace()))
    decoder, prefix, width = text_model(c, "llama", tied=True), "multi_modal_projector", 4
    if a.intermediate_size != width * a.hidden_size:
        raise AttributeError("audio_config.intermediate_size is not four times its hidden_size")
    activation, hidden = getattr(c, "projector_hidden_act", "gelu"), decoder.hidden
    tower = WindowedTower(
        stem=FrameStem(
            (
                FrameConvolution(f"{_TOWER}.conv1", a.num_mel_bins, a.hidden_size),
                FrameConvolution(f"{_TOWER}.conv2", a.hidden_size, a.hidden_size, stride=2),
            )
        ),
        stack=_glm_stack(a),
        projector=(
            FrameStack(width),
            Dense(f"{prefix}.linear_1", a.intermediate_size, 2 * hidden, activation=activation),
            Dense(f"{prefix}.linear_2", 2 * hidden, hidden),
        ),
        audio_token=audio_token(c, 59_260),
        hidden=hidden,
        window_frames=2 * a.max_position_embeddings,
        sines=False,
        padded=True,
    )
    return with_tower(decoder, tower)


def _glm_stack(a: Any) -> Encoder:
    heads, head_dim = a.num_attention_heads, a.hidden_size // a.num_attention_heads
    attention = Attention(
        num_heads=heads,
        num_kv_heads=a.num_key_value_heads or heads,
        head_dim=head_dim,
        scale=1.0 / math.sqrt(head_dim),
        rope=rope(a, head_dim, partial=0.5),
        projections=Projections(bias=True, key_bias=False, output_bias=True),
    )
    ffn = Mlp(a.intermediate_size, a.hidden_act, bias=True)
    return Encoder(
        hidden=a.hidden_size,
        vocab=0,
        layers=((attention, ffn),) * a.num_hidden_layers,
        norm=layer_norm(1e-5),
        head=Head(tied=True),
        tensors=TensorLayout(names=tuple(_GLM_NAMES.items())),
    )


def _conv2d_tower(c: Config, a: Any, names: tuple[str, str], token: int) -> WindowedTower:
    stem = SpectrogramStem(
        (f"{_TOWER}.conv2d1", f"{_TOWER}.conv2d2", f"{_TOWER}.conv2d3"),
        f"{_TOWER}.conv_out",
        a.num_mel_bins,
        a.downsample_hidden_size,
        a.d_model,
    )
    if a.n_window_infer % (2 * a.n_window):
        raise AttributeError("audio_config.n_window_infer is no multiple of twice n_window")
    steps: tuple[Step, ...] = (
        Dense(names[0], a.d_model, a.d_model, activation=a.activation_function),
        Dense(names[1], a.d_model, a.output_dim),
    )
    return WindowedTower(
        stem=stem,
        stack=_stack(a, key_bias=True, final_norm=True),
        projector=steps,
        audio_token=audio_token(c, token),
        hidden=a.output_dim,
        window_frames=2 * a.n_window,
        together=a.n_window_infer // (2 * a.n_window),
    )


def _part(c: Config, defaults: dict[str, Any]) -> Any:
    audio_config = getattr(c, "audio_config", None) or SimpleNamespace()
    return SimpleNamespace(**defaults | vars(audio_config))


def _stack(a: Any, *, key_bias: bool, final_norm: bool) -> Encoder:
    head_dim = a.d_model // a.encoder_attention_heads
    attention = Attention(
        num_heads=a.encoder_attention_heads,
        num_kv_heads=a.encoder_attention_heads,
        head_dim=head_dim,
        scale=1.0 / math.sqrt(head_dim),
        rope=None,
        projections=Projections(bias=True, key_bias=key_bias, output_bias=True),
    )
    ffn = Mlp(a.encoder_ffn_dim, a.activation_function, bias=True)
    return Encoder(
        hidden=a.d_model,
        vocab=0,
        layers=((attention, ffn),) * a.encoder_layers,
        norm=layer_norm(1e-5),
        head=Head(tied=True),
        final_norm=final_norm,
        tensors=TensorLayout(names=tuple(_NAMES.items())),
    )
