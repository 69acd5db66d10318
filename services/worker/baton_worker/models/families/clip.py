"""Contrastive text and image encoders: CLIP and SigLIP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config
from baton_worker.spec import (
    Attention,
    AttentionPool,
    CausalAttention,
    Dense,
    DualEncoder,
    Embedding,
    Head,
    Mlp,
    Norm,
    Padding,
    Patches,
    Positions,
    Projections,
    TensorLayout,
    Vision,
)

TABLE: dict[str, str] = {
    "CLIPModel": f"{__name__}:clip",
    "SiglipModel": f"{__name__}:siglip",
}
"""Architecture name to "module:function"."""

_STACK = {
    "mixer_norm": "layer_norm1",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.out_proj",
    "ffn_norm": "layer_norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_TEXT = {
    "embedding": "embeddings.token_embedding",
    "positions": "embeddings.position_embedding",
    "norm": "final_layer_norm",
}
_VISION = {
    "patches": "embeddings.patch_embedding",
    "class_token": "embeddings.class_embedding",
    "positions": "embeddings.position_embedding",
    "embedding_norm": "pre_layrnorm",
    "norm": "post_layernorm",
}
_POOL = {
    "probe": "vision_model.head.probe",
    "pool_input": "vision_model.head.attention.in_proj",
    "pool_output": "vision_model.head.attention.out_proj",
    "pool_norm": "vision_model.head.layernorm",
    "up": "vision_model.head.mlp.fc1",
    "down": "vision_model.head.mlp.fc2",
}
_UNUSED = (
    *("logit_scale", "logit_bias"),
    *("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids"),
)
"""Logit scale and bias, and position index buffers."""

_CLIP: dict[str, Any] = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "image_size": 224}
_SIGLIP: dict[str, Any] = {
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "image_size": 224,
}
_BASE: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
}
"""Defaults of transformers for fields missing from a config."""
_SMALL: dict[str, Any] = {
    "vocab_size": 49_408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "eos_token_id": 49_407,
}


def clip(c: Config) -> DualEncoder:
    """CLIP (Radford et al. 2021, arXiv:2103.00020): text attention is causal."""
    t = part_of(c, "text", _BASE | _CLIP | _SMALL)
    width = getattr(c, "projection_dim", 512)
    vision = clip_vision(c, "vision_model")
    projection = Dense("visual_projection", vision.hidden, width, bias=False)
    vision = replace(vision, projection=projection)
    # Checkpoints from before 2023 give 2, which is wrong; their end token has the highest id.
    end = -1 if t.eos_token_id == 2 else t.eos_token_id
    return DualEncoder(
        **_stack(t, "text_model", _TEXT, CausalAttention, unused=_UNUSED),
        **_texts(t, vision),
        projection=Dense("text_projection", t.hidden_size, width, bias=False),
        end=end,
    )


def siglip(c: Config) -> DualEncoder:
    """SigLIP (Zhai et al. 2023, arXiv:2303.15343): texts are padded, and the padding is attended
    to."""
    t = part_of(
        c,
        "text",
        _BASE
        | _SIGLIP
        | {"vocab_size": 32_000, "max_position_embeddings": 64, "pad_token_id": 1}
        | {"projection_size": None},
    )
    v = part_of(c, "vision", _BASE | _SIGLIP | {"patch_size": 16, "vision_use_head": True})
    if not v.vision_use_head:
        raise AttributeError("vision_use_head is false, and without it there is no vector")
    vision = Vision(
        **_stack(v, "vision_model", _VISION, Attention),
        patches=_patches(v, bias=True),
        pool=AttentionPool(v.num_attention_heads, _norm(v), _ffn(v), names=tuple(_POOL.items())),
    )
    width = t.projection_size or t.hidden_size
    if width != v.hidden_size:
        raise AttributeError(
            f"texts come to {width} numbers and images to {v.hidden_size}: they cannot be compared"
        )
    return DualEncoder(
        **_stack(t, "text_model", _TEXT, Attention, unused=_UNUSED),
        **_texts(t, vision),
        projection=Dense("text_model.head", t.hidden_size, width),
        padding=Padding(t.max_position_embeddings, t.pad_token_id),
    )


def clip_vision(c: Config, prefix: str) -> Vision:
    """CLIP's tower alone, whose tensors are under `prefix`; `c` is the config around it."""
    v = part_of(c, "vision", _BASE | _CLIP | {"patch_size": 32})
    return Vision(
        **_stack(v, prefix, _VISION, Attention),
        embedding_norm=_norm(v),
        patches=_patches(v, class_token=True),
    )


def siglip_vision(
    c: Config, prefix: str, defaults: Mapping[str, Any] = MappingProxyType({})
) -> Vision:
    """SigLIP's tower without its head, as `clip_vision`; `defaults` are the architecture's."""
    v = part_of(c, "vision", _BASE | _SIGLIP | {"patch_size": 16, **defaults})
    return Vision(**_stack(v, prefix, _VISION, Attention), patches=_patches(v, bias=True))


def part_of(c: Config, kind: str, defaults: dict[str, Any]) -> SimpleNamespace:
    """The config of one tower; the older field `text_config_dict` takes precedence."""
    configs = (getattr(c, f"{kind}_config{suffix}", None) for suffix in ("", "_dict"))
    parts = [vars(some) for some in configs if some is not None]
    return SimpleNamespace(**{k: v for fields in (defaults, *parts) for k, v in fields.items()})


def _stack(
    c: SimpleNamespace,
    prefix: str,
    names: dict[str, str],
    kind: type[Attention],
    unused: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Fields common to both stacks."""
    head_dim = c.hidden_size // c.num_attention_heads
    attention = kind(
        num_heads=c.num_attention_heads,
        num_kv_heads=c.num_attention_heads,
        head_dim=head_dim,
        scale=1.0 / math.sqrt(head_dim),
        rope=None,
        projections=Projections(bias=True, output_bias=True),
    )
    inside = {role: f"encoder.layers.{{layer}}.{name}" for role, name in _STACK.items()}
    stored = tuple((role, f"{prefix}.{name}") for role, name in (names | inside).items())
    return {
        "hidden": c.hidden_size,
        "vocab": getattr(c, "vocab_size", 0),
        "layers": ((attention, _ffn(c)),) * c.num_hidden_layers,
        "norm": _norm(c),
        "head": Head(tied=True),
        "tensors": TensorLayout(names=stored, unused=unused),
    }


def _texts(c: SimpleNamespace, vision: Vision) -> dict[str, Any]:
    length = c.max_position_embeddings
    return {
        "embedding": Embedding(positions=Positions(length)),
        "text_length": length,
        "max_length": max(length, vision.patches.count),
        "vision": vision,
    }


def _norm(c: SimpleNamespace) -> Norm:
    return Norm(c.layer_norm_eps, "layer", bias=True)


def _ffn(c: SimpleNamespace) -> Mlp:
    return Mlp(c.intermediate_size, c.hidden_act, bias=True)


def _patches(c: SimpleNamespace, *, bias: bool = False, class_token: bool = False) -> Patches:
    if c.num_channels != 3:
        raise AttributeError(f"num_channels {c.num_channels} is not supported, only 3")
    if not isinstance(c.image_size, int) or not isinstance(c.patch_size, int):
        raise AttributeError("image_size and patch_size must be one number each")
    return Patches(c.image_size, c.patch_size, bias=bias, class_token=class_token)
