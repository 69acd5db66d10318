"""Readers of processors that cut an image into tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from baton.errors import ModelError
from baton.tile_splits import TileSplits
from baton_mm_preprocess.image.processor import height_and_width, read_processor
from baton_mm_preprocess.processors.any_processor import Processor
from baton_mm_preprocess.processors.any_resolution import AnyResolution
from baton_mm_preprocess.processors.colors import CLIP, IMAGENET, read_colors
from baton_mm_preprocess.processors.dynamic_tiles import DynamicTiles
from baton_mm_preprocess.processors.image_splits import ImageSplits
from baton_mm_preprocess.processors.padded_tiles import PaddedTiles
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.processors.readers.square_images import any_resolution
from baton_mm_preprocess.processors.tilings.framed_parts import FramedParts
from baton_mm_preprocess.processors.tilings.hd_tiles import HdTiles
from baton_mm_preprocess.processors.tilings.image_slices import ImageSlices
from baton_mm_preprocess.processors.tilings.lone_tiles import LoneTiles
from baton_mm_preprocess.processors.tilings.multi_scale_tiles import MultiScaleTiles
from baton_mm_preprocess.processors.tilings.overlapping_crops import OverlappingCrops
from baton_mm_preprocess.processors.tilings.split_tiles import SplitTiles
from baton_mm_preprocess.processors.tilings.tile_rows import TileRows
from baton_mm_preprocess.processors.tilings.tiles_first import TilesFirst
from baton_mm_preprocess.processors.tilings.view_tiles import ViewTiles

_CUBIC = 3


def image_splits(files: Files, fields: dict[str, Any]) -> Processor:
    """Idefics3 and SmolVLM."""
    tile = fields["max_image_size"]["longest_edge"]
    side = tile // files.vision.get("patch_size", 32)
    tokens = side**2 // files.config.get("scale_factor", 2) ** 2
    return ImageSplits(
        read_colors(fields),
        fields["size"]["longest_edge"],
        tile,
        fields["resample"],
        files.processor.get("image_seq_len") or tokens,
        fields["do_image_splitting"],
    )


def dynamic_tiles(files: Files, fields: dict[str, Any]) -> Processor:
    """InternVL and Aya Vision, whose processors always use tiles, even if the file does not set
    it."""
    return DynamicTiles(
        read_colors(fields),
        height_and_width(fields["size"]),
        fields["resample"],
        files.number("image_seq_length", 256),
        fields["min_patches"],
        fields["max_patches"] if fields.get("crop_to_patches", True) else 1,
        rule=fields.get("rule", "aspect"),
        thumbnail_first=fields.get("thumbnail_first", False),
    )


def got_ocr2(files: Files, fields: dict[str, Any]) -> Processor:
    """GOT-OCR 2.0: whole pages, unless the file asks for tiles; an embedding for 4 x 4 patches."""
    size = height_and_width(fields["size"])
    side = size[0] // files.vision.get("patch_size", 16) // 4
    return DynamicTiles(
        read_colors(fields),
        size,
        fields["resample"],
        side**2,
        fields["min_patches"],
        fields["max_patches"] if fields["crop_to_patches"] else 1,
    )


def padded_tiles(files: Files, fields: dict[str, Any]) -> Processor:
    """Llama 4."""
    if fields.get("resize_to_max_canvas"):
        raise ModelError("its image processor asks for resize_to_max_canvas")
    tile, vision = height_and_width(fields["size"])[0], files.vision
    ratio = vision.get("pixel_shuffle_ratio", 0.5)
    return PaddedTiles(
        read_colors(fields),
        tile,
        fields["resample"],
        round((tile // vision.get("patch_size", 14)) ** 2 * ratio**2),
        fields["max_patches"],
    )


def attended_tiles(files: Files, fields: dict[str, Any]) -> Processor:
    """Llama 3.2 Vision: the states of a tile are those of its patches and of a class token."""
    tile, vision = height_and_width(fields["size"])[0], files.vision
    if tile != vision.get("image_size", 448):
        raise ModelError(
            f"its image processor makes tiles of {tile} pixels a side, and its config wants "
            f"{vision.get('image_size', 448)}"
        )
    states = (tile // vision.get("patch_size", 14)) ** 2 + 1
    most = min(fields["max_image_tiles"], vision.get("max_num_tiles", 4))
    return PaddedTiles(
        read_colors(fields), tile, fields["resample"], states, most, use_thumbnail=False
    )


def internvl_chat(files: Files, fields: dict[str, Any]) -> DynamicTiles:
    """InternVL's own code, with its settings in config.json."""
    config, side = files.config, files.config.get("force_image_size") or files.vision["image_size"]
    patches = int(side // files.vision["patch_size"] * config.get("downsample_ratio", 0.5))
    most = config.get("max_dynamic_patch", 12) if config.get("dynamic_image_size", True) else 1
    return DynamicTiles(
        read_colors(IMAGENET),
        (side, side),
        _CUBIC,
        patches**2,
        config.get("min_dynamic_patch", 1),
        most,
        use_thumbnail=config.get("use_thumbnail", True),
    )


def nemotron_tiles(files: Files, fields: dict[str, Any]) -> Processor:
    """NVIDIA's own code: the sizes are in config.json, the number of tiles in either file."""
    config, side = files.config, files.config["force_image_size"]
    merged = side // config["patch_size"] * config.get("downsample_ratio", 0.5)
    mean, std = (
        fields.get(f"norm_{name}") or config.get(f"norm_{name}") or CLIP[f"image_{name}"]
        for name in ("mean", "std")
    )
    v2 = config["architectures"][0] == "NemotronH_Nano_VL_V2"
    return DynamicTiles(
        read_colors({"image_mean": mean, "image_std": std}),
        (side, side),
        _CUBIC,
        int(merged) ** 2,
        most=fields["max_num_tiles"],
        use_thumbnail=fields["use_thumbnail"],
        rule="aspect" if v2 else "roomy",
    )


def h2ovl_chat(files: Files, fields: dict[str, Any]) -> Processor:
    """H2OVL-Mississippi's own code."""
    tiles = internvl_chat(files, fields)
    return MultiScaleTiles(tiles) if files.config["use_msac"] else tiles


def minimax_vl(files: Files, fields: dict[str, Any]) -> Processor:
    """MiniMax-VL-01's own code."""
    if (mode := fields.get("process_image_mode")) != "anyres":
        raise ModelError(f"its image processor has the mode {mode}, not anyres")
    wide, tall = fields["size"]
    square = {"size": {"height": tall, "width": wide}, "do_center_crop": False}
    processor = any_resolution(files, fields | square | {"vision_aspect_ratio": None})
    assert isinstance(processor, AnyResolution)
    return msgspec.structs.replace(processor, most_tiles=0, rounded_down=True)


def hyperclovax(files: Files, fields: dict[str, Any]) -> Processor:
    """HyperCLOVA X's own code: padding has the mean color."""
    config, tile = files.config, fields["crop_size"]["height"]
    if not (fields["anyres"] and fields["unpad"] and fields["pad_to_square"]):
        raise ModelError(
            "its image processor makes no padded tiles (anyres, unpad and pad_to_square)"
        )
    if fields["size"].get("shortest_edge") != tile or tile != files.vision.get("image_size"):
        raise ModelError(f"its image processor and its config differ in the size of tiles, {tile}")
    old = config.get("num_queries_vis_abstractor", 0)
    queries = config.get("num_queries_vis_abstractor_image", old)
    if not fields["possible_resolutions"]:
        raise ModelError("its image processor names no sizes (possible_resolutions)")
    red, green, blue = (int(255 * mean) for mean in fields["image_mean"])
    return AnyResolution(
        steps=read_processor(
            {**fields, "do_pad": False, "image_processor_type": None}, "CLIPImageProcessor"
        ),
        tile=tile,
        offered=tuple((tall, wide) for tall, wide in fields["possible_resolutions"]),
        resample=fields["resample"],
        patches=math.isqrt(queries) if queries > 0 else tile // files.vision["patch_size"],
        background=(red, green, blue),
        squared=True,
        unpadded_rounded=False,
    )


def vila(files: Files, fields: dict[str, Any]) -> Processor:
    """VILA's own code: tiles of a single image, if the config enables them."""
    config, side = files.config, files.config["vision_tower_cfg"]["image_size"]
    aspect = config.get("image_aspect_ratio")
    if aspect not in ("resize", "dynamic"):
        raise ModelError(f"its images of another aspect ratio are made {aspect}, which is unknown")
    if height_and_width(fields["size"]) != (side, side):
        raise ModelError(f"its image processor and its config differ in the size of images, {side}")
    kind = config["mm_projector_cfg"]["mm_projector_type"]
    patches = side // config["vision_tower_cfg"]["patch_size"]
    window = {"mlp_downsample_2x2_fix": 2, "mlp_downsample_3x3_fix": 3}.get(kind, 1)
    return LoneTiles(
        DynamicTiles(
            read_colors(fields),
            (side, side),
            _CUBIC,
            (-(-patches // window)) ** 2,
            config.get("min_tiles", 1),
            config.get("max_tiles", 12) if aspect == "dynamic" else 1,
        ),
        lined=aspect == "dynamic",
    )


def ovis(files: Files, fields: dict[str, Any]) -> Processor:
    """Ovis 2's own code: the side of a tile is in the file, the number of its tokens in the
    config."""
    tokenizer = files.config["visual_tokenizer_config"]
    encoder, size = tokenizer["backbone_config"], fields["size"]
    side = size["shortest_edge"] if "shortest_edge" in size else height_and_width(size)[0]
    tokens = (encoder["image_size"] // encoder["patch_size"] // tokenizer["hidden_stride"]) ** 2
    if side != encoder["image_size"]:
        raise ModelError(
            f"its image processor makes tiles of {side} pixels, and its config wants "
            f"{encoder['image_size']}"
        )
    return FramedParts(read_colors(fields), side, fields["resample"], tokens)


def image_slices(files: Files, fields: dict[str, Any]) -> Processor:
    """MiniCPM-V's own code, which normalises by `norm_mean` and `norm_std`; before 2.6 slices are
    nested."""
    encoder = {"patch_size": files.vision["patch_size"]} | (files.config.get("slice_config") or {})
    if any(fields.get(name, value) != value for name, value in encoder.items()):
        raise ModelError("its image processor cuts images in other ways than its config says")
    mean, std = (fields.get(f"norm_{name}", [0.5] * 3) for name in ("mean", "std"))
    return ImageSlices(
        read_colors({"image_mean": mean, "image_std": std}),
        fields["scale_resolution"],
        fields["max_slice_nums"] if fields["slice_mode"] else 1,
        fields["patch_size"],
        fields.get("image_feature_size") or files.number("query_num", 64),
        numbered=fields.get("use_image_id", False),
        nested=float(files.config.get("version", 2.5)) < 2.6,
    )


def split_tiles(files: Files, fields: dict[str, Any]) -> Processor:
    """LFM2-VL."""
    if fields["do_image_splitting"] and not fields["use_thumbnail"]:
        raise ModelError("its image processor leaves out the whole image (use_thumbnail)")
    least, most = fields["min_tiles"], fields["max_tiles"]
    rules = TileSplits(
        tile=fields["tile_size"],
        patch=fields["encoder_patch_size"],
        merge=fields["downsample_factor"],
        least=least if fields["do_image_splitting"] else 1,
        most=most if fields["do_image_splitting"] else 1,
        min_tokens=fields["min_image_tokens"],
        max_tokens=fields["max_image_tokens"],
        tolerance=fields["max_pixels_tolerance"],
    )
    marked = files.processor.get("use_image_special_tokens", True)
    return SplitTiles(read_colors(fields), rules, fields["resample"], marked)


def hd_tiles(files: Files, fields: dict[str, Any]) -> Processor:
    """Phi-4-multimodal; Microsoft's own files omit the sizes."""
    tile, patch = fields["size"]["height"], fields["patch_size"]
    encoder = {"image_size": tile, "patch_size": patch}
    if any(files.vision.get(name, value) != value for name, value in encoder.items()):
        raise ModelError("its image processor cuts images in other ways than its config says")
    return HdTiles(read_colors(fields), tile, patch, fields["dynamic_hd"])


def tile_rows(files: Files, fields: dict[str, Any]) -> Processor:
    """DeepSeek-VL2's own code."""
    tile, patch = files.vision.get("image_size", 384), fields["patch_size"]
    offered = files.config.get("candidate_resolutions") or fields["candidate_resolutions"]
    return TileRows(
        read_colors(fields),
        tile,
        tuple((tall, wide) for wide, tall in offered),
        -(-(tile // patch) // fields["downsample_ratio"]),
    )


def overlapping_crops(files: Files, fields: dict[str, Any]) -> Processor:
    """Molmo 2."""
    if list(fields["overlap_margins"]) != [4, 4] or list(fields["pooling_size"]) != [2, 2]:
        raise ModelError("its image processor has other margins than 4, or pools other than 2 x 2")
    patch = fields["patch_size"]
    margins = sum(fields["overlap_margins"]) * patch
    side = height_and_width(fields["size"])[0]
    return OverlappingCrops(read_colors(fields), side, patch, fields["max_crops"], margins)


def step3_vl(files: Files, fields: dict[str, Any]) -> Processor:
    """Step3's own code; its first convolution has windows of 2 x 2."""
    stride = files.config.get("understand_projector_stride", 1)
    return _tiles_first(files, fields, lambda side: _halved((side - 2) // stride + 1))


def step_vl(files: Files, fields: dict[str, Any]) -> Processor:
    """Step3-VL's own code."""
    return _tiles_first(files, fields, lambda side: _halved(_halved(side)))


def _halved(side: int) -> int:
    return (side + 1) // 2


def _tiles_first(files: Files, fields: dict[str, Any], merged: Callable[[int], int]) -> TilesFirst:
    """Tiles have 9/13 of the side of the resized image, 504 of 728 pixels; `merged` is the number
    of embeddings per side for a number of patches."""
    full, patch = files.vision.get("image_size", 728), files.vision.get("patch_size", 14)
    tile = full // patch * 9 // 13 * patch
    tokens = [merged(side // patch) ** 2 for side in (full, tile)]
    return TilesFirst(read_colors(fields), full, tile, patch, *tokens)


def view_tiles(files: Files, fields: dict[str, Any]) -> Processor:
    """DeepSeek-OCR 2 in transformers; without `crop_to_patches` the resized image would have the
    size of a tile."""
    if not fields["crop_to_patches"]:
        raise ModelError("its image processor cuts no tiles (crop_to_patches)")
    base_size, tile = _views(files, height_and_width(fields["size"])[0], fields["tile_size"], 768)
    red, green, blue = fields["background_color"]
    return ViewTiles(
        read_colors(fields),
        base_size,
        tile,
        files.number("patch_size", 16),
        fields["min_patches"],
        fields["max_patches"],
        (red, green, blue),
        fields["resample"],
        newlines=False,
    )


def deepseek_ocr(files: Files, fields: dict[str, Any]) -> Processor:
    """DeepSeek-OCR's own code, whose sizes are in code (the mode "Gundam")."""
    base_size, tile = _views(files, fields["base_size"], fields["image_size"], 640)
    red, green, blue = (int(255 * mean) for mean in fields["image_mean"])
    return ViewTiles(
        read_colors(fields),
        base_size,
        tile,
        fields["patch_size"],
        fields["min_crops"],
        fields["max_crops"],
        (red, green, blue),
        _CUBIC,
        newlines=True,
    )


def _views(files: Files, base_size: int, tile: int, beside: int) -> tuple[int, int]:
    """The sides of the resized image and of tiles; tiles have `beside` pixels a side if the encoder
    takes 1024. Raises `ModelError` if the encoder expects others."""
    sizes = ((files.vision.get("width") or {}).get("sam_vit_b"), files.vision.get("sam_config"))
    side = next((int(part["image_size"]) for part in sizes if part and "image_size" in part), 1024)
    expected = side, side * beside // 1024
    if (base_size, tile) != expected:
        raise ModelError(
            f"its image processor makes images of {base_size} and tiles of {tile} pixels a side, "
            f"and its encoder takes {expected[0]} and {expected[1]}"
        )
    return expected
