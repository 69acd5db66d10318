"""Voxtral Realtime (arXiv:2602.11298): a causal encoder whose embeddings are added to those of the
tokens, one each, and a language model that writes while it reads them, some tokens behind."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    rope,
    spelled,
)
from baton_worker.models.families.vision_common import two_layers, with_tower
from baton_worker.spec import (
    CausalAttention,
    Decoder,
    Encoder,
    FrameConvolution,
    FrameStack,
    FrameStem,
    Glu,
    Head,
    Mask,
    Norm,
    Projections,
    TensorLayout,
    TimeCondition,
    WindowedTower,
)

_TOWER = "audio_tower"
_LAYER = f"{_TOWER}.layers.{{layer}}"
_NAMES = {
    "norm": f"{_TOWER}.norm",
    "mixer_norm": f"{_LAYER}.self_attn_layer_norm",
    "query": f"{_LAYER}.self_attn.q_proj",
    "key": f"{_LAYER}.self_attn.k_proj",
    "value": f"{_LAYER}.self_attn.v_proj",
    "output": f"{_LAYER}.self_attn.o_proj",
    "ffn_norm": f"{_LAYER}.final_layer_norm",
    "gate": f"{_LAYER}.mlp.gate_proj",
    "up": f"{_LAYER}.mlp.up_proj",
    "down": f"{_LAYER}.mlp.down_proj",
}
_ENCODER: dict[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "head_dim": 64,
    "num_mel_bins": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "sliding_window": 750,
    "max_position_embeddings": 1500,
}
_SPELLINGS = {
    "hidden_size": "d_model",
    "intermediate_size": "encoder_ffn_dim",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
}
"""Other names of fields."""
_TEXT: dict[str, Any] = {
    "vocab_size": 131_072,
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "head_dim": 128,
    "sliding_window": 8192,
}
"""Defaults of transformers."""
_PAD = 32
"""Token that stands for a part in which no word ends."""
MOST_FRAMES = 3600
"""Of a part of a recording, which has 30 s, with the silence around it."""


@architecture("VoxtralRealtimeForConditionalGeneration", "VoxtralRealtimeGeneration")
def voxtral_realtime(c: Config) -> Decoder:
    """Norms before feed-forwards are conditioned on the delay, which is that of the config for all
    requests."""
    part = getattr(c, "text_config", None) or SimpleNamespace()
    text = SimpleNamespace(**_TEXT | vars(part) | {"tie_word_embeddings": _tied(c, part)})
    delay = getattr(c, "default_num_delay_tokens", 6)
    made = decoder(
        text,
        gqa(text, mask=Mask(window=text.sliding_window)),
        glu(text),
        style="conditioned",
        condition=TimeCondition(float(delay)),
    )
    return with_tower(made, _tower(c, made.hidden))


def _tied(*parts: Config) -> bool:
    """The first part of a config that has the key wins over the defaults of the others."""
    flags = (getattr(part, "tie_word_embeddings", None) for part in parts)
    return bool(next((some for some in flags if some is not None), True))


def _tower(c: Config, hidden: int) -> WindowedTower:
    part = spelled(getattr(c, "audio_config", None) or SimpleNamespace(), **_SPELLINGS)
    a = SimpleNamespace(**_ENCODER | vars(part))
    size = getattr(c, "downsample_factor", 4)
    projector = two_layers(c, size * a.hidden_size, hidden, bias=False)
    return WindowedTower(
        stem=FrameStem(
            (
                _convolution(1, a.num_mel_bins, a.hidden_size, stride=1),
                _convolution(2, a.hidden_size, a.hidden_size, stride=2),
            )
        ),
        stack=_stack(a),
        projector=(FrameStack(size), *projector),
        audio_token=_PAD,
        hidden=hidden,
        window_frames=MOST_FRAMES,
        sines=False,
        alongside=True,
    )


def _convolution(number: int, inputs: int, outputs: int, *, stride: int) -> FrameConvolution:
    name = f"{_TOWER}.embedder.conv{number}"
    return FrameConvolution(name, inputs, outputs, stride=stride, causal=True)


def _stack(a: Any) -> Encoder:
    heads, window = a.num_attention_heads, a.sliding_window
    attention = CausalAttention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=a.head_dim,
        scale=1.0 / math.sqrt(a.head_dim),
        rope=rope(a, a.head_dim),
        # That of an encoder counts what is before a state.
        mask=Mask(window=None if window is None else window - 1),
        projections=Projections(bias=True, key_bias=False, output_bias=True),
    )
    ffn = Glu(a.intermediate_size, a.hidden_act, down_bias=True)
    return Encoder(
        hidden=a.hidden_size,
        vocab=0,
        layers=((attention, ffn),) * a.num_hidden_layers,
        norm=Norm(a.rms_norm_eps),
        head=Head(tied=True),
        tensors=TensorLayout(names=tuple(_NAMES.items())),
    )
