"""Encoders of Qwen2-VL (arXiv:2409.12191), Qwen2.5-VL (arXiv:2502.13923), Qwen3-VL
(arXiv:2511.21631) and Qwen3-Omni (arXiv:2509.17765): images of any size, positions by rotation,
2 x 2 patches merged."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import QKV, Config
from baton_worker.models.families.vision_common import image_token, video_token
from baton_worker.spec import (
    Attention,
    Dense,
    Fused,
    Glu,
    Head,
    Merge,
    Mlp,
    Norm,
    Normed,
    Patches,
    Projections,
    Rope,
    Sections,
    Step,
    TensorLayout,
    VideoPlaceholders,
    Vision,
    VisionTower,
)

RENAMES = ((r"^model\.visual\.", "visual."),)
BASE: dict[str, Any] = {
    "depth": 32,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
LAYER = "visual.blocks.{layer}"
_NAMES = {
    "patches": "visual.patch_embed.proj",
    "positions": "visual.pos_embed",
    "mixer_norm": f"{LAYER}.norm1",
    "query": f"{LAYER}.attn.query",
    "key": f"{LAYER}.attn.key",
    "value": f"{LAYER}.attn.value",
    "output": f"{LAYER}.attn.proj",
    "ffn_norm": f"{LAYER}.norm2",
    "gate": f"{LAYER}.mlp.gate_proj",
}
_BIASED = Projections(bias=True, output_bias=True)
_QWEN2_MERGER = ("ln_q", "mlp.0", "mlp.2")
_QWEN3_MERGER = ("norm", "linear_fc1", "linear_fc2")


def qwen2_vl_vision(c: Config, hidden: int) -> VisionTower:
    """Layer norms and a plain feed-forward; the config's `hidden_size` is the decoder's."""
    v = part_of(c, "vision", BASE | {"embed_dim": 1280, "hidden_act": "quick_gelu", "mlp_ratio": 4})
    norm = Norm(1e-6, "layer", bias=True)
    ffn = Mlp(int(v.embed_dim * v.mlp_ratio), v.hidden_act, bias=True)
    stack = stack_of(v, v.embed_dim, norm, ffn, up="mlp.fc1", down="mlp.fc2")
    steps = _merger(v, v.embed_dim, hidden, norm, "visual.merger", _QWEN2_MERGER)
    return VisionTower(
        stack=stack,
        projector=steps,
        image_token=image_token(c, 151_655),
        hidden=hidden,
        video=VideoPlaceholders(video_token(c, 151_656)),
    )


def qwen2_5_vl_vision(c: Config, hidden: int) -> VisionTower:
    """RMS norms, a gated feed-forward, and attention within windows in most layers."""
    defaults = {"hidden_size": 3584, "hidden_act": "silu", "intermediate_size": 3420}
    more = {"window_size": 112, "fullatt_block_indexes": (7, 15, 23, 31), "tokens_per_second": 4}
    v = part_of(c, "vision", BASE | defaults | more)
    norm, ffn = Norm(1e-6), Glu(v.intermediate_size, v.hidden_act, bias=True)
    stack = stack_of(v, v.hidden_size, norm, ffn, up="mlp.up_proj", down="mlp.down_proj")
    steps = _merger(v, v.hidden_size, hidden, norm, "visual.merger", _QWEN2_MERGER)
    return VisionTower(
        stack=stack,
        projector=steps,
        image_token=image_token(c, 151_655),
        hidden=hidden,
        video=VideoPlaceholders(video_token(c, 151_656), v.tokens_per_second),
        window=v.window_size // v.patch_size,
        full_layers=tuple(v.fullatt_block_indexes),
    )


def exaone4_5_vision(c: Config, hidden: int) -> VisionTower:
    """Qwen2.5-VL's encoder, in which several queries share a key and a value."""
    tower = qwen2_5_vl_vision(c, hidden)
    heads = getattr(c.vision_config, "num_key_value_heads", 8)

    def shared(mixer: object) -> Attention:
        assert isinstance(mixer, Attention)
        return replace(mixer, num_kv_heads=heads)

    layers = tuple((shared(mixer), ffn) for mixer, ffn in tower.stack.layers)
    return replace(tower, stack=replace(tower.stack, layers=layers))


def qwen2_5_omni_vision(c: Config, hidden: int) -> VisionTower:
    """Qwen2.5-VL's encoder, whose queries, keys and values are separate tensors. The outer config
    gives the positions per second of a video, and its sound may be interleaved with it."""
    tower = qwen2_5_vl_vision(c, hidden)
    roles = {"query": "q", "key": "k", "value": "v"}
    names = {role: f"{LAYER}.attn.{part}" for role, part in roles.items()}
    tensors = TensorLayout(names=tuple((dict(tower.stack.tensors.names) | names).items()))
    tower = replace(tower, stack=replace(tower.stack, tensors=tensors), rope_index="mrope_shared")
    return _timed(c, tower, 25)


def _timed(c: Config, tower: VisionTower, rate: float) -> VisionTower:
    """With so many positions per second of a video, unless the outer config gives a number."""
    assert tower.video is not None
    tokens_per_second = float(getattr(c, "position_id_per_seconds", None) or rate)
    return replace(tower, video=replace(tower.video, tokens_per_second=tokens_per_second))


def qwen3_omni_vision(c: Config, hidden: int) -> VisionTower:
    """Qwen3-VL's encoder, whose mergers have names of their own. Videos are as Qwen2.5-Omni's."""
    tower = qwen3_vl_vision(c, hidden, mergers="visual.merger_list", names=_QWEN2_MERGER)
    return _timed(c, tower, 13)


def qwen3_vl_vision(
    c: Config,
    hidden: int,
    *,
    deepstack: bool = True,
    mergers: str = "visual.deepstack_merger_list",
    names: tuple[str, str, str] = _QWEN3_MERGER,
) -> VisionTower:
    """Learned positions beside the rotation, and with `deepstack` states of three layers for the
    decoder. `mergers` and `names` are the checkpoint's of these states' projectors and of a
    projector's layers."""
    defaults = {"depth": 27, "hidden_size": 1152, "hidden_act": "gelu_pytorch_tanh"}
    more = {"patch_size": 16, "intermediate_size": 4304, "num_position_embeddings": 2304}
    v = part_of(c, "vision", BASE | defaults | more | {"deepstack_visual_indexes": (8, 16, 24)})
    deepstack_layers = v.deepstack_visual_indexes if deepstack else ()
    if any(layer >= v.depth for layer in deepstack_layers):
        raise AttributeError(f"deepstack_visual_indexes below its depth of {v.depth}")
    norm = Norm(1e-6, "layer", bias=True)
    ffn = Mlp(v.intermediate_size, v.hidden_act, bias=True)
    side = math.isqrt(v.num_position_embeddings)
    patches = Patches(
        side * v.patch_size,
        v.patch_size,
        bias=True,
        positions="bilinear_corners",
        frames=v.temporal_patch_size,
    )
    up, down = "mlp.linear_fc1", "mlp.linear_fc2"
    stack = stack_of(v, v.hidden_size, norm, ffn, up=up, down=down, patches=patches)
    return VisionTower(
        stack=stack,
        projector=_merger(v, v.hidden_size, hidden, norm, "visual.merger", names),
        image_token=image_token(c, 151_655),
        hidden=hidden,
        video=VideoPlaceholders(video_token(c, 151_656)),
        deepstack=tuple(
            (layer, _merger(v, v.hidden_size, hidden, norm, f"{mergers}.{n}", names, last=True))
            for n, layer in enumerate(deepstack_layers)
        ),
    )


def stack_of(
    v: Any,
    width: int,
    norm: Norm,
    ffn: Mlp | Glu,
    *,
    up: str,
    down: str,
    patches: Patches | None = None,
    projections: Projections = _BIASED,
) -> Vision:
    """The layers; `v` is the vision config, `up` and `down` are names in a layer."""
    dim = width // v.num_heads
    rope = Rope(dim, 10_000.0, 0, "axial", sections=Sections((dim // 4, dim // 4)))
    attention = Attention(
        v.num_heads, v.num_heads, dim, 1 / math.sqrt(dim), rope, projections=projections
    )
    names = _NAMES | {"up": f"{LAYER}.{up}", "down": f"{LAYER}.{down}"}
    plain = Patches(0, v.patch_size, positions="none", frames=v.temporal_patch_size)
    return Vision(
        hidden=width,
        vocab=0,
        layers=((attention, ffn),) * v.depth,
        norm=norm,
        final_norm=False,
        head=Head(tied=True),
        patches=patches or plain,
        tensors=TensorLayout(names=tuple(names.items()), fused=(Fused(f"{LAYER}.attn.qkv", QKV),)),
    )


def _merger(
    v: Any,
    width: int,
    hidden: int,
    norm: Norm,
    prefix: str,
    names: tuple[str, str, str],
    *,
    last: bool = False,
) -> tuple[Step, ...]:
    """A norm before the merge, or after it if `last`, and two projections."""
    merge, inner = Merge(v.spatial_merge_size), width * v.spatial_merge_size**2
    normed, up, down = (f"{prefix}.{name}" for name in names)
    own = Normed(norm, inner if last else width, normed)
    return (
        *((merge, own) if last else (own, merge)),
        Dense(up, inner, inner, activation="gelu"),
        Dense(down, inner, hidden),
    )
