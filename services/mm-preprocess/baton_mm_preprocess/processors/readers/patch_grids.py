"""Readers of processors that cut an image of approximately its own size into patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from baton.errors import ModelError
from baton_mm_preprocess.image.processor import read_processor
from baton_mm_preprocess.processors.any_processor import Processor
from baton_mm_preprocess.processors.colors import Colors, read_colors
from baton_mm_preprocess.processors.fitted_patches import FittedPatches
from baton_mm_preprocess.processors.fixed_size import FixedSize
from baton_mm_preprocess.processors.limited_patches import LimitedPatches
from baton_mm_preprocess.processors.padded_patches import PaddedPatches
from baton_mm_preprocess.processors.patch_sequence import PatchSequence
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.processors.tilings.page_patches import PagePatches
from baton_mm_preprocess.processors.tilings.patch_budget import PatchBudget
from baton_mm_preprocess.processors.tilings.rounded_patches import RoundedPatches

_CUBIC = 3
_SOFT_TOKENS = (70, 140, 280, 560, 1120)

_ARIA_GRIDS = (
    *((1, columns) for columns in range(2, 9)),
    *((2, 4), (2, 3), (2, 2), (2, 1), (3, 1), (3, 2), (4, 1), (4, 2)),
    *((rows, 1) for rows in range(5, 9)),
)


def patch_sequence(files: Files, fields: dict[str, Any]) -> Processor:
    """Qwen2-VL and similar models: limits are the areas in `size`, or the older `min_pixels`."""
    size = fields["size"]
    return PatchSequence(
        read_colors(fields),
        fields["resample"],
        min_pixels=fields.get("min_pixels") or size["shortest_edge"],
        max_pixels=fields.get("max_pixels") or size["longest_edge"],
        patch=fields["patch_size"],
        merge=fields["merge_size"],
        frames=fields["temporal_patch_size"],
        volume=fields.get("volume", False),
        enlarge=fields.get("enlarge", ""),
    )


def kanana_patches(files: Files, fields: dict[str, Any]) -> Processor:
    """Kanana V's own code, which always resizes with cubics, regardless of `resample`."""
    processor = patch_sequence(files, fields | {"resample": _CUBIC, "enlarge": "at_least"})
    assert isinstance(processor, PatchSequence)
    return msgspec.structs.replace(processor, stepwise=True)


def hunyuan_patches(files: Files, fields: dict[str, Any]) -> Processor:
    """Hunyuan-VL, which always resizes with cubics, regardless of `resample`."""
    processor = patch_sequence(files, fields | {"resample": _CUBIC})
    assert isinstance(processor, PatchSequence)
    return msgspec.structs.replace(processor, framed=True)


def video_llama_3(files: Files, fields: dict[str, Any]) -> Processor:
    """VideoLLaMA 3, whose encoder takes each patch of an image by itself. Raises `ModelError`
    otherwise."""
    if fields["merge_size"] != 1:
        raise ModelError(
            f"its image processor merges patches (merge_size {fields['merge_size']}), which Baton "
            "does for no image of this architecture"
        )
    return patch_sequence(files, fields)


def openpangu_vl(files: Files, fields: dict[str, Any]) -> Processor:
    """openPangu-VL, whose encoder gets each image in all frames of a patch."""
    frames = files.vision.get("temporal_patch_size", 2)
    return patch_sequence(files, fields | {"temporal_patch_size": frames})


def ernie_vl(files: Files, fields: dict[str, Any]) -> Processor:
    """ERNIE 4.5-VL, whose files may name frames of videos that images do not have."""
    return patch_sequence(files, fields | {"temporal_patch_size": 1})


def isaac(files: Files, fields: dict[str, Any]) -> Processor:
    """Isaac's own code, whose limits are in either file."""
    least, most = (
        fields.get(f"{limit}_num_patches") or files.config.get(f"vision_{limit}_num_patches")
        for limit in ("min", "max")
    )
    vision = files.vision
    return RoundedPatches(
        read_colors(fields),
        vision.get("patch_size", 16),
        vision.get("pixel_shuffle_scale_factor", 1),
        least or 0,
        most or 256,
    )


def gemma4(files: Files, fields: dict[str, Any]) -> Processor:
    """Gemma 4, whose encoder expects colors from 0 to 1 and moves them to -1 to 1; here they are
    from the start."""
    if not fields.get("do_resize", True):
        raise ModelError("its image processor leaves images as large as they are (do_resize)")
    if (most := fields["max_soft_tokens"]) not in _SOFT_TOKENS:
        raise ModelError(f"its max_soft_tokens {most} are not one of {_SOFT_TOKENS}")
    patch, merge = fields["patch_size"], fields["pooling_kernel_size"]
    encoder = (files.vision.get("patch_size", 16), files.vision.get("pooling_kernel_size", 3))
    if encoder != (patch, merge):
        raise ModelError(
            f"its image processor has patches of {patch} pixels and means of {merge} x {merge}, "
            f"and its encoder takes {encoder[0]} and {encoder[1]}"
        )
    plain = read_colors(fields)
    mean = tuple(m + s / 2 for m, s in zip(plain.mean, plain.std, strict=True))
    colors = Colors(plain.scale, mean, tuple(s / 2 for s in plain.std))
    longest = files.vision.get("position_embedding_size", 10_240)
    return PatchBudget(colors, patch, merge, most, fields["resample"], longest)


def qwen_vl(files: Files, fields: dict[str, Any]) -> Processor:
    """Qwen-VL's own code: squares with the side of its config, for a fixed number of queries."""
    visual = files.config["visual"]
    side = {"height": visual["image_size"], "width": visual["image_size"]}
    steps = read_processor(
        {**fields, "size": side, "image_processor_type": None}, "SiglipImageProcessor"
    )
    return FixedSize(steps, visual.get("n_queries", 256))


def fitted_patches(files: Files, fields: dict[str, Any]) -> Processor:
    """Pixtral, and Mistral 3 that merges patches."""
    size, patch = fields["size"], fields["patch_size"]
    patch = patch["height"] if isinstance(patch, Mapping) else patch
    merge = files.config.get("spatial_merge_size") or files.processor.get("spatial_merge_size") or 1
    cut = files.processor.get("patch_size") or files.vision.get("patch_size") or patch
    longest = size.get("longest_edge") or size["height"]
    if patch not in (cut, cut * merge):
        raise ModelError(
            f"its image processor cuts patches of {patch} pixels and its encoder {cut}"
        )
    return FittedPatches(read_colors(fields), fields["resample"], longest, cut, merge)


def padded_patches(files: Files, fields: dict[str, Any]) -> Processor:
    """Aria: its projector has a number of queries per size."""
    longest, patch = fields["max_image_size"], files.vision.get("patch_size", 14)
    queries = files.config.get("projector_patch_to_query_dict") or {"1225": 128, "4900": 256}
    count = str((longest // patch) ** 2)
    if count not in queries:
        raise ModelError(f"its projector has no queries for images of {longest} pixels")
    offered = fields.get("split_resolutions") or [[490 * a, 490 * b] for a, b in _ARIA_GRIDS]
    if fields["split_image"] and any(side % longest for size in offered for side in size):
        raise ModelError("its image processor asks for split_image with tiles of unequal sizes")
    return PaddedPatches(
        read_colors(fields),
        longest,
        fields["min_image_size"],
        patch,
        fields["resample"],
        queries[count],
        tuple((tall, wide) for tall, wide in offered) if fields["split_image"] else (),
    )


def limited_patches(files: Files, fields: dict[str, Any]) -> Processor:
    """Kimi-VL."""
    if not fields.get("pad_input", False):
        raise ModelError("its image processor cuts images where this one pads them (pad_input)")
    merge = fields.get("merge_kernel_size", [2, 2])[0]
    return LimitedPatches(
        read_colors(fields), fields["in_token_limit"], fields["patch_size"], merge
    )


def kimi_k25(files: Files, fields: dict[str, Any]) -> Processor:
    """Kimi K2.5, with transformers' or Moonshot's names of settings."""
    nested = fields.get("media_proc_cfg")
    return limited_by_side(fields | moonshot(nested) if nested else fields)


def limited_by_side(fields: Mapping[str, Any]) -> LimitedPatches:
    """Processing steps of an image or a frame, from transformers' names."""
    sizes = fields["patch_size"], fields["merge_size"]
    most, side = fields["max_patches"], fields["size"]["max_height"]
    return LimitedPatches(read_colors(fields), most, *sizes, side=side)


def moonshot(config: Mapping[str, Any]) -> dict[str, Any]:
    """Moonshot's settings under the names of transformers. Raises `ModelError`."""
    if config.get("fixed_output_tokens") is not None:
        raise ModelError("its image processor asks for fixed_output_tokens")
    side = config["patch_limit_on_one_side"]
    return {
        "patch_size": config["patch_size"],
        "merge_size": config["merge_kernel_size"],
        "temporal_patch_size": config["temporal_merge_kernel_size"],
        "max_patches": config["in_patch_limit"],
        "size": {"max_height": side, "max_width": side},
        "image_mean": config["image_mean"],
        "image_std": config["image_std"],
    }


def nemotron_parse(files: Files, fields: dict[str, Any]) -> Processor:
    """Nemotron Parse's own code: pages with the size of its config."""
    (tall, wide), patch = files.config["image_size"], files.config["encoder"]["patch_size"]
    if tall % patch or wide % patch:
        raise ModelError(f"its image_size {tall} x {wide} has no whole patches of {patch}")
    return PagePatches(read_colors(fields), (tall, wide), patch)


def ovis2_5(files: Files, fields: dict[str, Any]) -> Processor:
    """Ovis 2.5's own code, which has its limits in code."""
    encoder = files.config["vit_config"]
    sizes = {"patch_size": encoder["patch_size"], "merge_size": encoder["hidden_stride"]}
    frames = {"temporal_patch_size": encoder.get("temporal_patch_size", 1)}
    return patch_sequence(files, fields | sizes | frames | {"enlarge": "by_shorter_side"})
