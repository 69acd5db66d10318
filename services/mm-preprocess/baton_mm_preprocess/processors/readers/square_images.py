"""Readers of processors that produce square images of one size, and of any-resolution tiles."""

from __future__ import annotations

from typing import Any

from baton.errors import ModelError
from baton_mm_preprocess.image.processor import Processor as Steps
from baton_mm_preprocess.image.processor import height_and_width, read_processor
from baton_mm_preprocess.processors.any_processor import Processor
from baton_mm_preprocess.processors.any_resolution import AnyResolution
from baton_mm_preprocess.processors.colors import read_colors
from baton_mm_preprocess.processors.fixed_size import FixedSize, Padding
from baton_mm_preprocess.processors.pan_and_scan import PanAndScan
from baton_mm_preprocess.processors.readers.files import Files


def fixed_size(files: Files, fields: dict[str, Any]) -> Processor:
    """LLaVA and PaliGemma: one embedding per patch, and CLIP's class token if it is kept. The
    stages of a Swin tower halve the sides between them."""
    vision = files.vision
    steps, side = _square(files, fields)
    patch = vision.get("patch_size", 32)
    has_class_token = vision.get("model_type", "clip_vision_model") == "clip_vision_model"
    is_full = files.config.get("vision_feature_select_strategy", "default") == "full"
    side //= patch
    for _ in vision.get("depths", ())[1:]:
        side = -(-side // 2)
    return FixedSize(steps, side**2 + (1 if has_class_token and is_full else 0))


def _square(files: Files, fields: dict[str, Any]) -> tuple[Steps, int]:
    """The steps to square images, and their side. Raises `ModelError` if the encoder expects
    others."""
    return _checked(files, fields, files.vision.get("image_size", 224))


def _checked(files: Files, fields: dict[str, Any], side: int) -> tuple[Steps, int]:
    steps = read_processor(files.image, fields["image_processor_type"])
    if steps.shape != (side, side):
        raise ModelError(
            f"its image processor makes images of {steps.shape or 'any size'}, and its config "
            f"wants {(side, side)}"
        )
    return steps, side


def pooled_places(files: Files, fields: dict[str, Any]) -> Processor:
    """Gemma 3n: a fixed number of embeddings, and the end of the image."""
    named = {**fields, "image_processor_type": "SiglipImageProcessor"}
    steps = read_processor(named, "SiglipImageProcessor")
    if steps.shape is None or steps.shape[0] != steps.shape[1]:
        raise ModelError("its image processor makes images that are no squares of one size")
    places = files.config.get("vision_soft_tokens_per_image")
    return FixedSize(steps, (places or files.number("image_seq_length", 256)) + 1)


def query_tokens(files: Files, fields: dict[str, Any]) -> Processor:
    """BLIP-2: one embedding per query of its Q-Former."""
    steps, _ = _square(files, fields)
    return FixedSize(steps, files.number("num_query_tokens", 32))


def padded_square(files: Files, fields: dict[str, Any]) -> Processor:
    """DeepSeek-VL and Janus: the longer side fits, the rest has the mean color."""
    side = files.vision.get("image_size", 384)
    if height_and_width(fields["size"]) != (side, side):
        raise ModelError(f"its image processor and its config differ in the size of images, {side}")
    steps = read_processor(
        {**fields, "do_pad": False, "image_processor_type": None}, "SiglipImageProcessor"
    )
    red, green, blue = (int(255 * mean) for mean in fields["image_mean"])
    padding = Padding(side, fields["min_size"], (red, green, blue), fields["resample"])
    return FixedSize(steps, (side // files.vision.get("patch_size", 16)) ** 2, padding)


def image_codes(files: Files, fields: dict[str, Any]) -> Processor:
    """Chameleon: each level of its encoder but the last halves both sides."""
    vq = {"resolution": 512, "channel_multiplier": [1] * 5} | (files.config.get("vq_config") or {})
    steps, side = _checked(files, fields, vq["resolution"])
    return FixedSize(steps, (side >> (len(vq["channel_multiplier"]) - 1)) ** 2)


def any_resolution(files: Files, fields: dict[str, Any]) -> Processor:
    """LLaVA-NeXT (CLIP) and LLaVA-OneVision (SigLIP)."""
    size = fields["size"]
    tile = size.get("shortest_edge") or size["height"]
    square = "shortest_edge" not in size
    steps = read_processor(
        {**fields, "do_pad": False, "image_processor_type": None},
        "SiglipImageProcessor" if square else "CLIPImageProcessor",
    )
    aspect = files.config.get("vision_aspect_ratio") or files.processor.get("vision_aspect_ratio")
    most = "anyres_max_9" if square and aspect is None else aspect or ""
    return AnyResolution(
        steps=steps,
        tile=tile,
        offered=tuple((tall, wide) for tall, wide in fields["image_grid_pinpoints"]),
        resample=fields["resample"],
        patches=tile // files.vision["patch_size"],
        most_tiles=int(most.removeprefix("anyres_max_") or 0) if "max" in most else 0,
    )


def pan_and_scan(files: Files, fields: dict[str, Any]) -> Processor:
    """Gemma 3."""
    crops = {
        "most": "pan_and_scan_max_num_crops",
        "least_edge": "pan_and_scan_min_crop_size",
        "least_aspect": "pan_and_scan_min_ratio_to_activate",
    }
    overrides = {
        field: fields[name] for field, name in crops.items() if fields.get(name) is not None
    }
    return PanAndScan(
        read_colors(fields),
        height_and_width(fields["size"]),
        fields["resample"],
        files.number("image_seq_length", files.number("mm_tokens_per_image", 256)),
        **overrides if fields.get("do_pan_and_scan") else {},
    )
