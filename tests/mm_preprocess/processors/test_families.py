"""Processors and placeholders of families, number for number as transformers makes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import transformers
from PIL import Image

from baton.errors import ModelError
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.limited_patches import LimitedPatches
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.readers.files import Files
from tests.support.tiny_dual_encoders import PROCESSORS, picture
from tests.support.video_processors import torch_processor

SIZES = [(64, 48), (17, 90), (301, 200), (31, 29), (700, 130)]
CLIP = {"vision_config": {"model_type": "clip_vision_model", "image_size": 30, "patch_size": 6}}
SIGLIP = {"vision_config": {"model_type": "siglip_vision_model", "image_size": 30, "patch_size": 6}}
_SQUARE = {"height": 30, "width": 30}
_NEXT = {
    "size": {"shortest_edge": 30},
    "crop_size": _SQUARE,
    "image_grid_pinpoints": [[30, 60], [60, 30], [60, 60], [90, 30], [30, 90]],
}
_OFFERED = [[30 * tall, 30 * wide] for tall in range(1, 5) for wide in range(1, 5)]
_LLAVA = {"patch_size": 6, "num_additional_image_tokens": 1}
_PADS = {"image_token": "<image>", "vision_feature_select_strategy": "default"}
ROWS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("LlavaForConditionalGeneration", CLIP, PROCESSORS["CLIPModel"], _LLAVA | _PADS),
    (
        "LlavaForConditionalGeneration",
        SIGLIP | {"vision_feature_select_strategy": "full"},
        PROCESSORS["SiglipModel"],
        {"patch_size": 6, "num_additional_image_tokens": 0, "image_token": "<image>"}
        | {"vision_feature_select_strategy": "full"},
    ),
    (
        "AriaForConditionalGeneration",
        {"vision_config": {"patch_size": 14}},
        {"max_image_size": 490},
        {"size_conversion": {490: 128}},
    ),
    (
        "AriaForConditionalGeneration",
        {"vision_config": {"patch_size": 14}},
        {"max_image_size": 490, "split_image": True},
        {"size_conversion": {490: 128}},
    ),
    (
        "Blip2ForConditionalGeneration",
        {"vision_config": {"image_size": 30}},
        {"size": _SQUARE},
        {"num_query_tokens": 5},
    ),
    (
        "ChameleonForConditionalGeneration",
        {"vq_config": {"resolution": 32, "channel_multiplier": [1, 2, 2]}},
        {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
        {"image_seq_length": 64},
    ),
    ("VipLlavaForConditionalGeneration", CLIP, PROCESSORS["CLIPModel"], _LLAVA | _PADS),
    (
        "DeepseekVLForConditionalGeneration",
        SIGLIP,
        {"size": _SQUARE, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        {"num_image_tokens": 25},
    ),
    (
        "JanusForConditionalGeneration",
        {"vision_config": {"image_size": 60, "patch_size": 12}},
        {"size": {"height": 60, "width": 60}},
        {"num_image_tokens": 25},
    ),
    ("LlavaNextForConditionalGeneration", CLIP, _NEXT, _LLAVA | _PADS),
    (
        "LlavaOnevisionForConditionalGeneration",
        SIGLIP | {"vision_aspect_ratio": "anyres_max_4"},
        {"size": _SQUARE, "image_grid_pinpoints": _OFFERED},
        {"num_image_tokens": 25, "vision_aspect_ratio": "anyres_max_4", "image_token": "<image>"}
        | {"vision_feature_select_strategy": "full"},
    ),
    ("Qwen2VLForConditionalGeneration", {}, {"min_pixels": 28 * 28, "max_pixels": 40_000}, {}),
    ("Qwen2_5_VLForConditionalGeneration", {}, {}, {}),
    (
        "Qwen3VLForConditionalGeneration",
        {},
        {"size": {"shortest_edge": 4096, "longest_edge": 65_536}, "patch_size": 16}
        | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        {},
    ),
    ("Glm4vForConditionalGeneration", {}, {}, {}),
    ("Glm46VForConditionalGeneration", {}, {}, {}),
    ("Exaone4_5_ForConditionalGeneration", {}, {}, {}),
    ("VideoLlama3ForConditionalGeneration", {}, {"max_pixels": 50_000}, {}),
    (
        "HunYuanVLForConditionalGeneration",
        {},
        {"size": {"shortest_edge": 4096, "longest_edge": 65_536}, "resample": 1},
        {"cat_extra_token": True},
    ),
    (
        "GlmOcrForConditionalGeneration",
        {},
        {
            "image_processor_type": "Glm46VImageProcessor",
            "size": {"shortest_edge": 12_544} | {"longest_edge": 60_000},
        },
        {},
    ),
    (
        "PaddleOCRVLForConditionalGeneration",
        {},
        {"size": {"shortest_edge": 900, "longest_edge": 50_000}},
        {},
    ),
    (
        "Ernie4_5_VLMoeForConditionalGeneration",
        {},
        {"size": {"shortest_edge": 3136, "longest_edge": 50_000}},
        {},
    ),
    ("LlavaNextVideoForConditionalGeneration", CLIP, _NEXT, _LLAVA | _PADS),
    (
        "Gemma3ForConditionalGeneration",
        {},
        {"size": _SQUARE, "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 40}
        | {"pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2},
        {},
    ),
    ("Gemma3ForConditionalGeneration", {}, {"size": _SQUARE}, {}),
    (
        "PaliGemmaForConditionalGeneration",
        SIGLIP,
        PROCESSORS["SiglipModel"],
        {"image_seq_length": 25},
    ),
    (
        "Idefics3ForConditionalGeneration",
        {"vision_config": {"patch_size": 13}},
        {"size": {"longest_edge": 104}, "max_image_size": {"longest_edge": 52}},
        {"image_seq_len": 4},
    ),
    (
        "SmolVLMForConditionalGeneration",
        {"vision_config": {"patch_size": 13}},
        {"size": {"longest_edge": 104}, "max_image_size": {"longest_edge": 52}},
        {"image_seq_len": 4},
    ),
    ("InternVLForConditionalGeneration", {}, {"size": _SQUARE}, {"image_seq_length": 3}),
    ("QianfanOCRForConditionalGeneration", {}, {"size": _SQUARE}, {"image_seq_length": 3}),
    (
        "PixtralForConditionalGeneration",
        {"vision_config": {"patch_size": 16}},
        {"size": {"longest_edge": 128}},
        {"patch_size": 16, "spatial_merge_size": 1},
    ),
    (
        "Mistral3ForConditionalGeneration",
        {"vision_config": {"patch_size": 14}, "spatial_merge_size": 2},
        {"size": {"longest_edge": 128}, "patch_size": 28},
        {"patch_size": 14, "spatial_merge_size": 2},
    ),
    (
        "AyaVisionForConditionalGeneration",
        {},
        {"size": _SQUARE},
        {"image_seq_length": 9, "img_size": 12, "patch_size": 4},
    ),
]
"""Architecture, config.json, preprocessor_config.json and processor_config.json."""
_CLASSES = {
    "VipLlavaForConditionalGeneration": "LlavaProcessor",
    "QianfanOCRForConditionalGeneration": "InternVLProcessor",
    "GlmOcrForConditionalGeneration": "Glm46VProcessor",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2_5_VLProcessor",
    "InternVLForConditionalGeneration": "InternVLProcessor",
}
_TOKENS = {
    "Qwen": {"image_token": "<|image_pad|>"},
    "Paddle": {"image_token": "<|IMAGE_PLACEHOLDER|>"},
    "Glm": {"image_token": "<|image|>"},
    "HunYuan": {"image_token": "<image>"},
    "VideoLlama3": {"image_token": "<image>"},
    "Ernie": {"image_token": "<|IMAGE_PLACEHOLDER|>"},
    "Idefics3": {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    | {"global_image_tag": "<global-img>"},
    "SmolVLM": {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    | {"global_image_token": "<global-img>"},
    **dict.fromkeys(
        ("InternVL", "QianfanOCR"),
        {"image_token": "<IMG_CONTEXT>"}
        | {"start_image_token": "<img>", "end_image_token": "</img>"},
    ),
    "Exaone": {"image_token": "<|image_pad|>"},
    **dict.fromkeys(
        ("DeepseekVL", "Janus"),
        {"image_token": "<image_placeholder>"}
        | {"image_start_token": "<begin_of_image>", "image_end_token": "<end_of_image>"},
    ),
    "AyaVision": {"image_token": "<|IMG_PATCH|>", "img_patch_token": "<|IMG_PATCH|>"}
    | {"start_of_img_token": "<|START_OF_IMG|>", "end_of_img_token": "<|END_OF_IMG|>"}
    | {"tile_token": "TILE", "tile_global_token": "TILE_GLOBAL"},
    "Aria": {"image_token": "<|img|>"},
    "PaliGemma": {"image_token": "<image>"},
    "Chameleon": {"image_token": "<image>"}
    | {"image_start_token": "<racm3:break>", "image_end_token": "<eoss>"},
    "Gemma3": {"image_token": "<image_soft_token>"}
    | {
        "full_image_sequence": "\n\n<start_of_image>"
        + "<image_soft_token>" * 256
        + "<end_of_image>\n\n"
    },
}


def written(architecture: str, made: Any, config: dict[str, Any], processor: dict[str, Any]) -> Any:
    """What the processor of transformers puts in a prompt, and its image token."""
    stem = architecture.removesuffix("ForConditionalGeneration")
    if stem in ("Pixtral", "Mistral3"):  # Its processor cannot be imported without torchvision.
        patch = processor["patch_size"] * processor["spatial_merge_size"]
        rows, columns = (int(side) // patch for side in made.features["image_sizes"][0])
        return "[IMG_BREAK]".join(["[IMG]" * columns] * rows) + "[IMG_END]", "[IMG]"
    if stem == "Blip2":  # Its processor writes into token ids.
        return "<image>" * processor["num_query_tokens"], "<image>"
    cls = getattr(transformers, _CLASSES.get(architecture, f"{stem}Processor"))
    own = cls.__new__(cls)
    tokens = next((t for name, t in _TOKENS.items() if stem.startswith(name)), {})
    for name, value in (tokens | processor | {"image_processor": made.processor}).items():
        setattr(own, name, value)
    return own.replace_image_token(made.features, 0), own.image_token


def reference(kind: str, settings: dict[str, Any], image: Any) -> Any:
    extra = {"crop_to_patches": True} if kind.startswith("GotOcr2") else {}
    if kind.startswith(("Idefics3", "SmolVLM")):
        extra = {"return_row_col_info": True}
    settings = {k: v for k, v in settings.items() if k != "image_processor_type"}
    processor = getattr(transformers, f"{kind}Pil")(**settings, **extra)
    return SimpleNamespace(processor=processor, features=processor(image, return_tensors="np"))


def by_windows(
    expected: npt.NDArray[np.float32], processor: Any, size: tuple[int, int]
) -> npt.NDArray[np.float32]:
    """Patches [n, 3, patch, patch] row by row, with those that are merged side by side."""
    cells = expected.reshape(*size, *expected.shape[1:]).transpose(2, 0, 3, 1, 4)
    plane = cells.reshape(3, size[0] * processor.patch, size[1] * processor.patch)
    return patchify(plane, processor.patch, processor.merge)


def compared(
    pixels: npt.NDArray[np.float32], expected: Any, processor: Any, grid: tuple[int, int, int]
) -> bool:
    """Whether pixels are equal, in the layout that the tower takes."""
    expected = np.asarray(expected)
    if expected.ndim == 5:
        expected = expected[0]
    if getattr(processor, "framed", False):  # Row by row in transformers.
        expected = expected.reshape(len(expected), 3, processor.patch, processor.patch)
    if type(processor).__name__ == "PatchSequence" and expected.ndim == 4:
        expected = by_windows(expected, processor, grid[1:])
    if type(processor).__name__ == "PaddedPatches":
        tall, wide = (side * processor.patch for side in grid[1:])
        cells = [patchify(tile[:, :tall, :wide], processor.patch) for tile in expected]
        expected = np.concatenate(cells)
    if type(processor).__name__ == "FittedPatches":
        expected = patchify(expected[0], processor.patch, processor.merge)
    return np.array_equal(pixels, expected.reshape(pixels.shape))


@pytest.mark.row("F02.05", "F02.06", "F02.09", "V50")
def test_pixels_and_placeholders_equal_those_of_transformers() -> None:
    for architecture, config, image, extra in ROWS:
        family = FAMILIES[architecture]
        processor = processor_of(Files(config, image, extra), family.kind)
        kind = str(image.get("image_processor_type", family.kind))
        for size in SIZES:
            made = reference(kind, image, picture(*size))
            found = processor(picture(*size))
            where = f"{architecture} {size}"
            assert found.pixels.dtype == np.float32, where
            assert compared(found.pixels, made.features["pixel_values"], processor, found.grid), (
                where
            )
            text, token = written(architecture, made, config, extra)
            pieces = family.placeholder(processor, found.grid, found.num_tokens)
            assert "".join(p if isinstance(p, str) else token * p for p in pieces) == text, where
            assert text.count(token) == found.num_tokens, where
            if "image_grid_thw" in made.features:
                assert found.grid == tuple(made.features["image_grid_thw"][0])


def test_video_llama_3_refuses_merged_patches() -> None:
    family = FAMILIES["VideoLlama3ForConditionalGeneration"]
    with pytest.raises(ModelError, match="merge_size 2"):
        processor_of(Files({}, {"merge_size": 2}), family.kind)


def test_got_ocr2_sees_whole_pages() -> None:
    """And tiles, if its file says so."""
    family = FAMILIES["GotOcr2ForConditionalGeneration"]
    config = {"vision_config": {"patch_size": 4}}
    for tiles, settings in ((1, {}), (4, {"crop_to_patches": True})):
        files = Files(config, settings | {"size": {"height": 48, "width": 48}})
        found = processor_of(files, family.kind, whatever=True)(picture(90, 30))
        own = transformers.GotOcr2ImageProcessorPil(**files.image)
        made = own(picture(90, 30), return_tensors="np")
        assert np.array_equal(found.pixels, made["pixel_values"])
        assert found.num_tokens == tiles * 3 * 3, "a state for 4 x 4 patches"


def test_stages_of_a_swin_tower_halve_the_sides() -> None:
    """LLaVA's processor in transformers counts patches alone."""
    vision = {"model_type": "swin", "image_size": 44, "patch_size": 4, "depths": [2, 2, 2]}
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 44, "width": 44}}
    family = FAMILIES["LlavaForConditionalGeneration"]
    found = processor_of(Files({"vision_config": vision}, settings), family.kind)(picture(60, 30))
    made = reference("ViTImageProcessor", settings, picture(60, 30))
    assert np.array_equal(found.pixels, made.features["pixel_values"][0])
    assert found.num_tokens == 3 * 3, "11 patches a side become 6, then 3"


def test_ovis_has_image_tokens_in_the_place_of_marks() -> None:
    family = FAMILIES["Ovis2ForConditionalGeneration"]
    settings = {"size": _SQUARE}
    processor = processor_of(Files({}, settings, {"image_seq_length": 5}), family.kind)
    cls = transformers.Ovis2Processor
    own = cls.__new__(cls)
    own.image_seq_length = 5
    for size in SIZES:
        image = transformers.Ovis2ImageProcessorPil(**settings, crop_to_patches=True)(
            picture(*size), return_tensors="np"
        )
        found = processor(picture(*size))
        assert np.array_equal(found.pixels, image["pixel_values"])
        assert found.grid[1:] == tuple(image["grids"][0])
        text = own.replace_image_token(image, 0)
        [count] = family.placeholder(processor, found.grid, found.num_tokens)
        assert count == text.count("<"), "every token of it"


def test_llama4_pads_its_tiles() -> None:
    """Its processor of transformers needs torchvision."""
    family = FAMILIES["Llama4ForConditionalGeneration"]
    config = {"vision_config": {"patch_size": 7}}
    settings = {"size": {"height": 28, "width": 28}, "max_patches": 4}
    processor = processor_of(Files(config, settings), family.kind)
    image = picture(50, 20)
    found = processor(image)
    assert found.grid == (1, 1, 2) and found.pixels.shape == (3, 3, 28, 28)
    plane = np.concatenate([found.pixels[0], found.pixels[1]], axis=2)
    expected = np.full((3, 28, 56), -1.0)
    expected[:, :20, :50] = np.asarray(image).transpose(2, 0, 1) / 127.5 - 1
    assert np.abs(plane - expected).max() < 1e-5, "no image is enlarged beyond a tile"
    assert found.num_tokens == 3 * 4
    text = "".join(
        piece if isinstance(piece, str) else "*" * piece
        for piece in family.placeholder(processor, found.grid, found.num_tokens)
    )
    assert text == (
        "<|image_start|>****<|tile_x_separator|>****<|tile_y_separator|><|image|>****<|image_end|>"
    )


@pytest.mark.row("V14", "F02.09")
def test_tiles_that_tokens_attend_to() -> None:
    """Of Llama 3.2 Vision, number for number as transformers makes them; one token stands for an
    image."""
    family = FAMILIES["MllamaForConditionalGeneration"]
    settings = {"size": {"height": 28, "width": 28}, "max_image_tiles": 4}
    config = {"vision_config": {"image_size": 28, "patch_size": 7}}
    processor = processor_of(Files(config, settings), family.kind)
    for size in SIZES:
        found, made = processor(picture(*size)), reference(family.kind, settings, picture(*size))
        count = int(made.features["num_tiles"][0][0])
        assert np.array_equal(found.pixels, made.features["pixel_values"][0, 0, :count]), size
        shapes = [(rows, columns) for rows in range(1, 5) for columns in range(1, 4 // rows + 1)]
        assert shapes[made.features["aspect_ratio_ids"][0, 0] - 1] == found.grid[1:]
        assert found.num_tokens == count * 17 and family.cross
        assert list(family.placeholder(processor, found.grid, found.num_tokens)) == [1]
    with pytest.raises(ModelError, match="tiles of 28 pixels"):
        processor_of(Files({}, settings), family.kind)


@pytest.mark.row("V12", "F02.05")
def test_gemma3n_has_as_many_places_and_an_end() -> None:
    """Pixels are those of transformers; the last embedding is that of the token after the image."""
    family, settings = FAMILIES["Gemma3nForConditionalGeneration"], {"do_normalize": False}
    files = Files({"vision_soft_tokens_per_image": 4}, settings | {"size": _SQUARE})
    processor = processor_of(files, family.kind, whatever=family.whatever)
    found = processor(picture(50, 20))
    made = reference("SiglipImageProcessor", {**files.image}, picture(50, 20))
    assert np.array_equal(found.pixels, made.features["pixel_values"][0])
    own = transformers.Gemma3nProcessor.__new__(transformers.Gemma3nProcessor)
    own.full_image_sequence = f"\n\n<start_of_image>{'<image>' * 4}<end_of_image>\n\n"
    pieces = family.placeholder(processor, found.grid, found.num_tokens)
    text = "".join(piece if isinstance(piece, str) else "<image>" * piece for piece in pieces)
    assert text == own.replace_image_token({}, 0) and found.num_tokens == 5
    wide = settings | {"size": {"height": 30, "width": 60}}
    with pytest.raises(ModelError, match="no squares"):
        processor_of(Files({}, wide), family.kind, whatever=family.whatever)


def test_kimi_pads_what_it_does_not_shrink() -> None:
    """By the published description: transformers has no processor of Kimi-VL."""
    family = FAMILIES["KimiVLForConditionalGeneration"]
    settings = {"patch_size": 7, "in_token_limit": 24, "pad_input": True}
    processor = processor_of(Files({}, settings), family.kind)
    image = picture(30, 20)  # 4 x 2 patches of 7 pixels.
    found = processor(image)
    plane = np.full((3, 28, 42), -1.0)
    plane[:, :20, :30] = np.asarray(image).transpose(2, 0, 1) / 127.5 - 1
    assert found.grid == (1, 4, 6) and found.num_tokens == 6
    assert np.abs(found.pixels - patchify(plane.astype(np.float32), 7, 2)).max() < 1e-5
    small = processor(picture(140, 70))  # 20 x 10 patches become at most 24.
    assert small.grid == (1, 4, 8), "48 x 24 pixels, padded"
    with pytest.raises(ModelError, match="pad_input"):
        processor_of(Files({}, {}), family.kind)


@pytest.mark.row("V32")
def test_openpangu_has_the_processor_of_qwen2_vl() -> None:
    """With as many frames as its encoder takes, whatever its file says."""
    family, settings = FAMILIES["OpenPanguVLForConditionalGeneration"], {"max_pixels": 50_000}
    vision = {"vision_config": {"temporal_patch_size": 2}}
    found = processor_of(Files(vision, settings | {"temporal_patch_size": 1}), family.kind)
    assert found == processor_of(Files({}, settings), "Qwen2VLImageProcessor")


@pytest.mark.row("F01.10", "V23")
def test_kimi_k25_as_transformers_and_as_moonshot_name_its_settings() -> None:
    """Grids are those of transformers; pixels are Moonshot's, which Pillow resizes."""
    family = FAMILIES["Kimi_K25ForConditionalGeneration"]
    settings = {"max_patches": 60, "patch_size": 7, "size": {"max_height": 12, "max_width": 12}}
    own = torch_processor("kimi_k25.image_processing_kimi_k25", family.kind, **settings)
    half, limits = [0.5] * 3, {"in_patch_limit": 60, "patch_limit_on_one_side": 12}
    sizes = {"patch_size": 7, "merge_kernel_size": 2, "temporal_merge_kernel_size": 4}
    moonshot = {"media_proc_cfg": limits | sizes | {"image_mean": half, "image_std": half}}
    processor = processor_of(Files({}, settings), family.kind)
    assert isinstance(processor, LimitedPatches)
    assert processor == processor_of(Files({}, moonshot), family.kind)
    for size in SIZES:
        made, found = own(picture(*size), return_tensors="np"), processor(picture(*size))
        assert found.grid == tuple(made["image_grid_thw"][0]), size
        assert found.num_tokens == found.pixels.shape[0] // 4
        tall, wide = processor.size(size[::-1])
        plane = np.zeros((found.grid[1] * 7, found.grid[2] * 7, 3))
        plane[:tall, :wide] = picture(*size).resize((wide, tall), Image.Resampling.BICUBIC)
        expected = (plane.transpose(2, 0, 1) / 127.5 - 1).astype(np.float32)
        assert np.abs(found.pixels - patchify(expected, 7, 2)).max() < 1e-6, size
    moonshot["media_proc_cfg"]["fixed_output_tokens"] = 8
    with pytest.raises(ModelError, match="fixed_output_tokens"):
        processor_of(Files({}, moonshot), family.kind)


def test_tokens_of_families() -> None:
    spell = {"<IMG_CONTEXT>": [7], "<image>": [8]}.get
    chat = FAMILIES["InternVLChatModel"]
    assert chat.image_token(Files({}, {}), lambda text: spell(text, [])) == 7
    assert chat.marker_token(Files({}, {}), lambda text: spell(text, [])) == 8
    files = Files({"image_token_id": 3}, {})
    other = FAMILIES["InternVLForConditionalGeneration"]
    assert other.image_token(files, lambda text: []) == other.marker_token(files, lambda text: [])
    with pytest.raises(ModelError, match="no token <IMG_CONTEXT>"):
        other.image_token(Files({}, {}), lambda text: [1, 2])


def test_internvl_chat_has_its_settings_in_its_config() -> None:
    config = {"vision_config": {"image_size": 28, "patch_size": 7}, "max_dynamic_patch": 4}
    family = FAMILIES["InternVLChatModel"]
    files = Files(config, {"image_processor_type": "CLIPFeatureExtractor", "size": 28})
    image = processor_of(files, family.kind, whatever=family.whatever)(picture(90, 30))
    mean = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    settings = {"size": {"height": 28, "width": 28}, "max_patches": 4} | mean
    made = reference("GotOcr2ImageProcessor", settings, picture(90, 30))
    assert np.array_equal(image.pixels, made.features["pixel_values"])
    assert (image.grid, image.num_tokens) == ((1, 1, 3), 4 * 4)
