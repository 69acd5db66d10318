"""LFM2-VL (arXiv:2511.23404): SigLIP 2 for images of any size, 2 x 2 patches merged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton.tile_splits import TileSplits
from baton_worker.models.families.clip import siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.vision_common import (
    image_token,
    text_model,
    two_layers,
    with_tower,
)
from baton_worker.spec import (
    Decoder,
    Dense,
    Merge,
    Norm,
    Normed,
    SplitTiles,
    Step,
    Vision,
    VisionTower,
)

_TOWER, _PROJECTOR = "vision_tower", "multi_modal_projector"
_UNUSED = (f"{_TOWER}.head.",)
_RULES: dict[str, Any] = {
    "tile_size": 512,
    "encoder_patch_size": 16,
    "downsample_factor": 2,
    "min_tiles": 2,
    "max_tiles": 10,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "max_pixels_tolerance": 2.0,
}
"""Defaults of the image processor."""


@architecture("Lfm2VlForConditionalGeneration")
def lfm2_vl(c: Config) -> Decoder:
    """Tiles and the whole image one after the other."""
    decoder, stack = text_model(c, "lfm2", tied=True), _stack(c)
    size = getattr(c, "downsample_factor", 2)
    inner = stack.hidden * size**2
    tower = VisionTower(
        stack=stack,
        projector=(Merge(size), *_projector(c, inner, decoder.hidden)),
        image_token=image_token(c, 396),
        hidden=decoder.hidden,
        arrangement=SplitTiles(_rules(c)),
    )
    return with_tower(decoder, tower, unused=_UNUSED)


def _projector(c: Config, inner: int, hidden: int) -> tuple[Step, ...]:
    """A norm, unless the config leaves it out, and two layers of any width between."""
    wide, bias = getattr(c, "projector_hidden_size", 2560), getattr(c, "projector_bias", True)
    first, second = two_layers(c, inner, wide, bias=bias)
    assert isinstance(first, Dense) and isinstance(second, Dense)
    steps = first, replace(second, outputs=hidden)
    if not getattr(c, "projector_use_layernorm", True):
        return steps
    return Normed(Norm(1e-5, "layer", bias=True), inner, f"{_PROJECTOR}.layer_norm"), *steps


def _stack(c: Config) -> Vision:
    """SigLIP's, with positions resized to an image and a projection of patches as a matrix."""
    side = round(getattr(c.vision_config, "num_patches", 256) ** 0.5)
    stack = siglip_vision(c, _TOWER)
    patches = replace(
        stack.patches,
        image=side * stack.patches.size,
        positions="bilinear_antialias",
        flat=True,
        channels_last=True,
    )
    return replace(stack, patches=patches)


def _rules(c: Config) -> TileSplits:
    """The tiling rules of the image processor; without tiles there is the full image only."""
    rules = {name: getattr(c, name, default) for name, default in _RULES.items()}
    if not getattr(c, "do_image_splitting", True):
        rules |= {"min_tiles": 1, "max_tiles": 1}
    return TileSplits(
        tile=rules["tile_size"],
        patch=rules["encoder_patch_size"],
        merge=rules["downsample_factor"],
        least=rules["min_tiles"],
        most=rules["max_tiles"],
        min_tokens=rules["min_image_tokens"],
        max_tokens=rules["max_image_tokens"],
        tolerance=rules["max_pixels_tolerance"],
    )
