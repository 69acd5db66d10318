"""Image processors by class name: their reader and default settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from baton.errors import ModelError
from baton_mm_preprocess.processors.any_processor import Processor
from baton_mm_preprocess.processors.colors import CLIP, HALF
from baton_mm_preprocess.processors.readers import patch_grids, square_images, tile_sets
from baton_mm_preprocess.processors.readers.files import Files

Reader: TypeAlias = Callable[[Files, dict[str, Any]], Processor]

_CUBIC, _LINEAR, _LANCZOS = 3, 2, 1
_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_NEXT = {
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "resample": _CUBIC,
    "image_grid_pinpoints": _PINPOINTS,
    **CLIP,
}
_PADDED = {
    "size": {"height": 384, "width": 384},
    "min_size": 14,
    "resample": _CUBIC,
    **CLIP,
}
_SIDES = range(384, 2305, 384)
_ONEVISION = {
    "size": {"height": 384, "width": 384},
    "do_center_crop": False,
    "resample": _CUBIC,
    "image_grid_pinpoints": [[tall, wide] for tall in _SIDES for wide in _SIDES],
    **CLIP,
}
_SEQUENCE = {
    "resample": _CUBIC,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    **CLIP,
}
_TILES = {
    "size": {"height": 384, "width": 384},
    "resample": _CUBIC,
    "min_patches": 1,
    "max_patches": 12,
    **CLIP,
}
_SPLITS = {
    "size": {"longest_edge": 4 * 364},
    "max_image_size": {"longest_edge": 364},
    "resample": _LANCZOS,
    "do_image_splitting": True,
    **HALF,
}
_GLM: tuple[Reader, dict[str, Any]] = (
    patch_grids.patch_sequence,
    _SEQUENCE
    | {"size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15_000}, "volume": True},
)
_PHI: tuple[Reader, dict[str, Any]] = (
    tile_sets.hd_tiles,
    {"size": {"height": 448, "width": 448}, "patch_size": 14, "dynamic_hd": 36, **HALF},
)
READERS: dict[str, tuple[Reader, dict[str, Any]]] = {
    "CLIPImageProcessor": (square_images.fixed_size, {}),
    "SiglipImageProcessor": (square_images.fixed_size, {}),
    "ViTImageProcessor": (square_images.fixed_size, {}),
    "Gemma3n": (square_images.pooled_places, {}),
    "BlipImageProcessor": (square_images.query_tokens, {}),
    "ChameleonImageProcessor": (square_images.image_codes, {}),
    "JanusImageProcessor": (square_images.padded_square, _PADDED),
    "DeepseekVLImageProcessor": (square_images.padded_square, _PADDED),
    "LlavaNextImageProcessor": (square_images.any_resolution, _NEXT),
    "LlavaOnevisionImageProcessor": (square_images.any_resolution, _ONEVISION),
    "Qwen2VLImageProcessor": (patch_grids.patch_sequence, _SEQUENCE),
    "KananaVImageProcessor": (
        patch_grids.kanana_patches,
        _SEQUENCE | {"size": {"shortest_edge": 56 * 56, "longest_edge": 14 * 14 * 4 * 1280}},
    ),
    "VideoLlama3ImageProcessor": (
        patch_grids.video_llama_3,
        _SEQUENCE | {"merge_size": 1, "temporal_patch_size": 1, **HALF},
    ),
    "OpenPanguVL": (patch_grids.openpangu_vl, _SEQUENCE),
    "Glm4vImageProcessor": _GLM,
    "Glm46VImageProcessor": _GLM,
    "Lfm2VlImageProcessor": (
        tile_sets.split_tiles,
        {"resample": _LINEAR, "do_image_splitting": True, "use_thumbnail": True, "min_tiles": 2}
        | {"max_tiles": 10, "min_image_tokens": 64, "max_image_tokens": 256, "tile_size": 512}
        | {"encoder_patch_size": 16, "downsample_factor": 2, "max_pixels_tolerance": 2.0, **HALF},
    ),
    "HunYuanVLImageProcessor": (
        patch_grids.hunyuan_patches,
        _SEQUENCE
        | {"size": {"shortest_edge": 512 * 512, "longest_edge": 2048 * 2048}}
        | {"patch_size": 16, "temporal_patch_size": 1},
    ),
    "KeyeImageProcessor": (
        patch_grids.patch_sequence,
        _SEQUENCE
        | {"size": {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 1280}, **HALF}
        | {"temporal_patch_size": 1, "enlarge": "side_by_side"},
    ),
    "PaddleOCRVLImageProcessor": (
        patch_grids.patch_sequence,
        _SEQUENCE
        | {"size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536}}
        | {"temporal_patch_size": 1, "enlarge": "side_by_side"},
    ),
    "Ernie4_5_VLMoeImageProcessor": (
        patch_grids.ernie_vl,
        _SEQUENCE | {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 6177}},
    ),
    "PixtralImageProcessor": (
        patch_grids.fitted_patches,
        {"size": {"longest_edge": 1024}, "patch_size": 16, "resample": _CUBIC, **CLIP},
    ),
    "Gemma3ImageProcessor": (
        square_images.pan_and_scan,
        {"size": {"height": 224, "width": 224}, "resample": _LINEAR, **HALF},
    ),
    "AriaImageProcessor": (
        patch_grids.padded_patches,
        {"max_image_size": 980, "min_image_size": 336, "split_image": False, "resample": _CUBIC}
        | HALF,
    ),
    "Idefics3ImageProcessor": (tile_sets.image_splits, _SPLITS),
    "SmolVLMImageProcessor": (tile_sets.image_splits, _SPLITS),
    "GotOcr2ImageProcessor": (tile_sets.dynamic_tiles, _TILES),
    "GotOcr2": (tile_sets.got_ocr2, _TILES | {"crop_to_patches": False}),
    "Cohere2VisionImageProcessor": (
        tile_sets.dynamic_tiles,
        _TILES | {"size": {"height": 512, "width": 512}, "rule": "least_upscaled"},
    ),
    "Ovis2ImageProcessor": (
        tile_sets.dynamic_tiles,
        _TILES | {"rule": "covering", "thumbnail_first": True},
    ),
    "Llama4ImageProcessor": (
        tile_sets.padded_tiles,
        {"size": {"height": 336, "width": 336}, "resample": _LINEAR, "max_patches": 16, **HALF},
    ),
    "MllamaImageProcessor": (
        tile_sets.attended_tiles,
        {"size": {"height": 224, "width": 224}, "resample": _LINEAR, "max_image_tiles": 4} | HALF,
    ),
    "KimiVLImageProcessor": (
        patch_grids.limited_patches,
        {"patch_size": 14, "in_token_limit": 4096, **HALF},
    ),
    "Kimi_K25ImageProcessor": (
        patch_grids.kimi_k25,
        {"patch_size": 14, "merge_size": 2, "max_patches": 16_384, **HALF}
        | {"size": {"max_height": 512, "max_width": 512}},
    ),
    "InternVLChat": (tile_sets.internvl_chat, {}),
    "H2OVLChat": (tile_sets.h2ovl_chat, {}),
    "NemotronVL": (tile_sets.nemotron_tiles, {"max_num_tiles": 12, "use_thumbnail": True}),
    "MiniMaxVL01": (
        tile_sets.minimax_vl,
        {"resample": _CUBIC, "image_grid_pinpoints": _PINPOINTS, **CLIP},
    ),
    "HyperCLOVAX": (
        tile_sets.hyperclovax,
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
        | {"anyres": False, "unpad": False, "pad_to_square": True, "resample": _CUBIC}
        | {"possible_resolutions": [], **CLIP},
    ),
    "VILA": (tile_sets.vila, {"size": {"height": 384, "width": 384}, **HALF}),
    # Its files request no normalisation: the encoder contains it.
    "NemotronParse": (patch_grids.nemotron_parse, CLIP),
    "Isaac": (patch_grids.isaac, HALF),
    "Gemma4ImageProcessor": (
        patch_grids.gemma4,
        {"patch_size": 16, "max_soft_tokens": 280, "pooling_kernel_size": 3, "resample": _CUBIC}
        | {"do_normalize": False, "image_mean": [0.0] * 3, "image_std": [1.0] * 3},
    ),
    "QwenVL": (patch_grids.qwen_vl, {"resample": _CUBIC, **CLIP}),
    "Ovis": (tile_sets.ovis, {"resample": _CUBIC, **CLIP}),
    "Ovis2_5": (
        patch_grids.ovis2_5,
        {"resample": _CUBIC, "min_pixels": 448 * 448, "max_pixels": 1792 * 1792, **HALF}
        | {"size": {}},
    ),
    "MiniCPMVImageProcessor": (
        tile_sets.image_slices,
        {"scale_resolution": 448, "max_slice_nums": 9, "patch_size": 14, "slice_mode": True},
    ),
    "Phi4MultimodalImageProcessor": _PHI,
    "Phi4MMImageProcessor": _PHI,
    "Molmo2ImageProcessor": (
        tile_sets.overlapping_crops,
        {"size": {"height": 378, "width": 378}, "patch_size": 14, "max_crops": 8}
        | {"overlap_margins": [4, 4], "pooling_size": [2, 2], **HALF},
    ),
    "DeepseekOCR": (
        tile_sets.deepseek_ocr,
        {"base_size": 1024, "image_size": 640, "patch_size": 16, "min_crops": 2, "max_crops": 6}
        | HALF,
    ),
    "DeepseekOcr2ImageProcessor": (
        tile_sets.view_tiles,
        {"size": {"height": 1024, "width": 1024}, "tile_size": 768, "crop_to_patches": True}
        | {"min_patches": 2, "max_patches": 6, "background_color": [127] * 3}
        | {"resample": _CUBIC, **HALF},
    ),
    "Step3VL": (tile_sets.step3_vl, CLIP),
    "StepVL": (tile_sets.step_vl, CLIP),
    "DeepseekVLV2Processor": (
        tile_sets.tile_rows,
        {"patch_size": 14, "downsample_ratio": 2, **HALF},
    ),
}
"""Reader of an image processor's settings, and transformers' defaults."""


def processor_of(files: Files, kind: str, *, whatever: bool = False) -> Processor:
    """The processor that a checkpoint describes, of `kind` if its files name none, or always with
    `whatever`.

    Raises:
        ModelError: it is not supported, or a field makes no sense.
    """
    declared = None if whatever else files.image.get("image_processor_type")
    named = str(declared or kind).removesuffix("Fast")
    if named not in READERS:
        raise ModelError(f"its image processor {named} is not supported, only {', '.join(READERS)}")
    reader, defaults = READERS[named]
    settings = {key: value for key, value in files.image.items() if value is not None}
    fields = defaults | settings | {"image_processor_type": named}
    try:
        return reader(files, fields)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"its image processor has a field that makes no sense: {error}") from error
