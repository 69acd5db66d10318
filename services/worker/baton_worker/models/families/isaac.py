"""Isaac (Perceptron 2025): SigLIP 2 for images of any size beside Qwen3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton_worker.models.families.clip import siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llama import qwen3
from baton_worker.models.families.vision_common import image_token, with_tower
from baton_worker.models.families.vision_language import language_model, text_of
from baton_worker.spec import Decoder, Dense, Merge, Sections, Vision, VisionTower

_EMBEDDING = "vision_embedding"
_TOWER, _FIRST, _SECOND = (f"{_EMBEDDING}.{part}" for part in ("tower", "linear_1", "linear_2"))
_RENAMES = (
    (rf"^model\.{_EMBEDDING}\.(0|vision_tower)\.", f"{_TOWER}."),
    (rf"^model\.{_EMBEDDING}\.(1|multimodal_projector\.0)\.", f"{_FIRST}."),
    (rf"^model\.{_EMBEDDING}\.(3|multimodal_projector\.2)\.", f"{_SECOND}."),
    (r"^model\.text_model\.", "model."),
)
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
}


@architecture("IsaacForConditionalGeneration")
def isaac(c: Config) -> Decoder:
    """Half of the rotated channels are of time, a quarter of rows and one of columns, which count
    from 0 in each image."""
    head = getattr(text_of(c), "head_dim", None) or 128
    sections = Sections((head // 4, head // 8, head // 8))
    decoder = language_model(c, qwen3, sections, base=1_000_000.0)
    stack, size = _stack(c), getattr(c.vision_config, "pixel_shuffle_scale_factor", 1)
    inner = stack.hidden * size**2
    steps = (
        Merge(size),
        Dense(_FIRST, inner, 4 * inner, bias=False, activation="silu"),
        Dense(_SECOND, 4 * inner, decoder.hidden, bias=False),
    )
    tower = VisionTower(
        stack=stack,
        projector=steps,
        image_token=image_token(c, 151_655, "<|image_pad|>"),
        hidden=decoder.hidden,
        rope_index="mrope_separate",
    )
    return with_tower(decoder, tower, _RENAMES)


def _stack(c: Config) -> Vision:
    """SigLIP's, with positions resized to an image and a projection of patches as a matrix."""
    stack = siglip_vision(c, _TOWER, _DEFAULTS)
    side = round(getattr(c.vision_config, "num_patches", 256) ** 0.5)
    patches = replace(
        stack.patches,
        image=side * stack.patches.size,
        positions="bilinear_antialias",
        flat=True,
        channels_last=True,
    )
    return replace(stack, patches=patches)
