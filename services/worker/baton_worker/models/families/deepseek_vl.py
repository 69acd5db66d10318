"""DeepSeek-VL2 (arXiv:2412.10302): SigLIP on the whole image and on its tiles, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import QKV, Config, architecture
from baton_worker.models.families.mla import deepseek_v2, deepseek_v3
from baton_worker.models.families.moe import deepseek
from baton_worker.models.families.vision_common import image_token, with_tower
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Fused,
    Head,
    Mlp,
    Norm,
    Patches,
    Projections,
    Step,
    TensorLayout,
    TileRows,
    Unfold,
    Vision,
    VisionTower,
)

_TEXT: dict[str, Any] = {
    "vocab_size": 102_400,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "moe_intermediate_size": 1407,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "first_k_dense_replace": 0,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "use_mla": True,
    "topk_method": "greedy",
    "tie_word_embeddings": False,
}
"""Defaults of DeepSeek's configuration class."""
_VISION: dict[str, Any] = {
    "image_size": 384,
    "patch_size": 16,
    "width": 1024,
    "layers": 24,
    "heads": 16,
    "mlp_ratio": 4,
}
_PROJECTOR: dict[str, Any] = {
    "projector_type": "downsample_mlp_gelu",
    "depth": 2,
    "mlp_ratio": 1,
    "downsample_ratio": 2,
    "token_pooling": False,
}
_LAYER = "vision.blocks.{layer}"
_NAMES = {
    "patches": "vision.patch_embed.proj",
    "positions": "vision.pos_embed",
    "norm": "vision.norm",
    "mixer_norm": f"{_LAYER}.norm1",
    "query": f"{_LAYER}.attn.query",
    "key": f"{_LAYER}.attn.key",
    "value": f"{_LAYER}.attn.value",
    "output": f"{_LAYER}.attn.proj",
    "ffn_norm": f"{_LAYER}.norm2",
    "up": f"{_LAYER}.mlp.fc1",
    "down": f"{_LAYER}.mlp.fc2",
}
RENAMES = ((r"^language\.", ""),)


@architecture("DeepseekVLV2ForCausalLM")
def deepseek_vl2(c: Config) -> Decoder:
    """The smallest model has plain heads, the largest DeepSeek-V3's routing."""
    decoder, v = text(c), part_of(c, "vision", _VISION)
    if (tag := getattr(c, "tile_tag", "2D")) != "2D":
        raise AttributeError(f"tile_tag {tag} is not 2D")
    last = getattr(c, "global_view_pos", "head") != "head"
    tower = VisionTower(
        stack=_stack(v),
        projector=_projector(c, v.width, decoder.hidden),
        image_token=image_token(c, 128_815, "<image>"),
        hidden=decoder.hidden,
        arrangement=TileRows("image_newline", "view_seperator", last),
    )
    return with_tower(decoder, tower, RENAMES, ("vision.attn_pool.",))


def text(c: Config) -> Decoder:
    """The language model of `language_config`."""
    language_config = vars(getattr(c, "language_config", None) or c.text_config)
    fields = {name: value for name, value in language_config.items() if value is not None}
    nulls = {"q_lora_rank": None} if language_config.get("q_lora_rank", 0) is None else {}
    whole = SimpleNamespace(
        **_TEXT | {"served_length": getattr(c, "served_length", None)} | fields | nulls
    )
    families: dict[str, Callable[[Config], Decoder]] = {"noaux_tc": deepseek_v3}
    family = families.get(whole.topk_method, deepseek_v2 if whole.use_mla else deepseek)
    return family(whole)


def _projector(c: Config, width: int, hidden: int) -> tuple[Step, ...]:
    p = part_of(c, "projector", _PROJECTOR)
    if p.projector_type != "downsample_mlp_gelu" or p.token_pooling:
        raise AttributeError(f"projector_type {p.projector_type} or its token_pooling is unknown")
    inner, last = hidden * p.mlp_ratio, p.depth - 1
    inputs = [width * p.downsample_ratio**2, *[inner] * last]
    outputs = [*[inner] * last, hidden]
    return (
        Unfold(p.downsample_ratio),
        *(
            Dense(
                f"projector.layers.{2 * step}",
                inputs[step],
                outputs[step],
                activation="gelu" if step < last else "identity",
            )
            for step in range(p.depth)
        ),
    )


def _stack(v: Any) -> Vision:
    """SigLIP under timm's names."""
    dim = v.width // v.heads
    attention = Attention(
        v.heads,
        v.heads,
        dim,
        1 / math.sqrt(dim),
        None,
        projections=Projections(bias=True, output_bias=True),
    )
    ffn = Mlp(int(v.width * v.mlp_ratio), "gelu_pytorch_tanh", bias=True)
    return Vision(
        hidden=v.width,
        vocab=0,
        layers=((attention, ffn),) * v.layers,
        norm=Norm(1e-6, "layer", bias=True),
        head=Head(tied=True),
        patches=Patches(v.image_size, v.patch_size, bias=True, stored="batched"),
        tensors=TensorLayout(
            names=tuple(_NAMES.items()), fused=(Fused(f"{_LAYER}.attn.qkv", QKV),)
        ),
    )
