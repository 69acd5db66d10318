"""Keye-VL (arXiv:2507.01949) and Keye-VL 1.5 (arXiv:2509.01563): SigLIP for images of any size."""

from __future__ import annotations

from dataclasses import replace

from baton_worker.models.families.clip import siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llama import qwen3
from baton_worker.models.families.vision_common import image_token, with_tower
from baton_worker.models.families.vision_language import language_model
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Merge,
    Norm,
    Normed,
    Rope,
    Sections,
    Step,
    Vision,
    VisionTower,
)

_TOWER = "visual.vision_model"
_UNUSED = (f"{_TOWER}.head.", f"{_TOWER}.embeddings.packing_position_embedding")
_DEFAULTS = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}


@architecture("KeyeForConditionalGeneration")
def keye(c: Config) -> Decoder:
    """Patches are normed before they are merged."""
    return _keye(c, merged_first=False)


@architecture("KeyeVL1_5ForConditionalGeneration")
def keye_1_5(c: Config) -> Decoder:
    """Patches are normed behind the merge."""
    return _keye(c, merged_first=True)


def _keye(c: Config, *, merged_first: bool) -> Decoder:
    decoder = language_model(c, qwen3, Sections((16, 24, 24)), base=1_000_000.0, tower=True)
    stack, norm = _stack(c), Norm(1e-5, "layer", bias=True)
    size = getattr(c.vision_config, "spatial_merge_size", 2)
    inner = stack.hidden * size**2
    normed = Normed(norm, inner if merged_first else stack.hidden, "mlp_AR.pre_norm")
    merge = Merge(size)
    steps: tuple[Step, ...] = (
        *((merge, normed) if merged_first else (normed, merge)),
        Dense("mlp_AR.linear_1", inner, inner, activation="gelu"),
        Dense("mlp_AR.linear_2", inner, decoder.hidden),
    )
    tower = VisionTower(
        stack=stack,
        projector=steps,
        image_token=image_token(c, 151_655),
        hidden=decoder.hidden,
    )
    return with_tower(decoder, tower, (), _UNUSED)


def _stack(c: Config) -> Vision:
    """SigLIP with resized positions, beside which rows and columns turn queries and keys."""
    stack = siglip_vision(c, _TOWER, _DEFAULTS)
    attention, ffn = stack.layers[0]
    assert isinstance(attention, Attention)
    dim = attention.head_dim
    rope = Rope(dim, 10_000.0, 0, "axial", sections=Sections((dim // 4, dim // 4)))
    layer = replace(attention, rope=rope), ffn
    patches = replace(stack.patches, positions="bilinear")
    return replace(stack, layers=(layer,) * len(stack.layers), patches=patches)
