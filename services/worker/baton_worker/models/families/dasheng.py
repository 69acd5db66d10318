"""MiDashengLM (arXiv:2508.03983): the encoder Dasheng (arXiv:2406.06992) and Qwen2.5."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import QKV, Config, architecture, layer_norm
from baton_worker.models.families.llama import qwen2
from baton_worker.models.families.vision_common import audio_token, with_tower
from baton_worker.models.families.vision_language import language_model
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Encoder,
    FrameStack,
    Fused,
    Head,
    Mlp,
    PatchStem,
    Projections,
    TensorLayout,
    WindowedTower,
)

_ROOT = "audio_encoder"
_BLOCK = f"{_ROOT}.blocks.{{layer}}"
_NAMES = {
    "norm": f"{_ROOT}.norm",
    "mixer_norm": f"{_BLOCK}.norm1",
    "mixer_scale": f"{_BLOCK}.ls1.gamma",
    "output": f"{_BLOCK}.attn.proj",
    "ffn_norm": f"{_BLOCK}.norm2",
    "ffn_scale": f"{_BLOCK}.ls2.gamma",
    "up": f"{_BLOCK}.mlp.fc1",
    "down": f"{_BLOCK}.mlp.fc2",
} | {part: f"{_BLOCK}.attn.{part}" for part in QKV}
_DASHENG: dict[str, Any] = {
    "embed_dim": 768,
    "depth": 12,
    "num_heads": 12,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "init_values": None,
    "patch_size": 16,
    "patch_stride": 16,
    "input_channels": 1,
    "target_length": 1012,
    "n_mels": 64,
}
_UNUSED = (f"{_ROOT}.front_end.", f"{_ROOT}.init_bn.num_batches_tracked")


@architecture("MiDashengLMModel")
def midasheng_lm(c: Config) -> Decoder:
    """Windows of 10 s, whose states do not see those of others; five states side by side, across
    windows."""
    encoder_config = getattr(c, "audio_encoder_config", None) or SimpleNamespace()
    a = SimpleNamespace(**_DASHENG | vars(encoder_config))
    decoder = language_model(c, qwen2, None, base=1_000_000.0)
    stem, size = _stem(a), getattr(c, "subsample_factor", 5)
    prefix, hidden = "audio_projector.net", decoder.hidden
    tower = WindowedTower(
        stem=stem,
        stack=_stack(a),
        projector=(
            FrameStack(size),
            Dense(f"{prefix}.0", size * a.embed_dim, hidden, activation="gelu"),
            Dense(f"{prefix}.2", hidden, hidden),
        ),
        audio_token=audio_token(c, 151_646),
        hidden=hidden,
        window_frames=stem.size * stem.positions,
        sines=False,
    )
    return with_tower(decoder, tower, ((r"^decoder\.", ""),), _UNUSED)


def _stem(a: Any) -> PatchStem:
    sizes = [list(some) if isinstance(some, list | tuple) else [some, some]
             for some in (a.patch_size, a.patch_stride)]  # fmt: skip
    if sizes[0] != sizes[1] or sizes[0][0] != a.n_mels or a.input_channels != 1:
        raise AttributeError(
            "audio_encoder_config.patch_size: patches of all bins of one channel, without overlap"
        )
    size = sizes[0][1]
    return PatchStem(
        prefix=_ROOT,
        bins=a.n_mels,
        size=size,
        hidden=a.embed_dim,
        positions=a.target_length // size,
    )


def _stack(a: Any) -> Encoder:
    head_dim = a.embed_dim // a.num_heads
    attention = Attention(
        num_heads=a.num_heads,
        num_kv_heads=a.num_heads,
        head_dim=head_dim,
        scale=1.0 / math.sqrt(head_dim),
        rope=None,
        projections=Projections(bias=a.qkv_bias, output_bias=True),
    )
    ffn = Mlp(int(a.embed_dim * a.mlp_ratio), "gelu", bias=True)
    return Encoder(
        hidden=a.embed_dim,
        vocab=0,
        layers=((attention, ffn),) * a.depth,
        norm=layer_norm(1e-6),
        style="scaled" if a.init_values else "pre",
        head=Head(tied=True),
        tensors=TensorLayout(
            names=tuple(_NAMES.items()), fused=(Fused(f"{_BLOCK}.attn.qkv", QKV),)
        ),
    )
