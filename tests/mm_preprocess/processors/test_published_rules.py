"""Image processors that transformers does not have, against an independent re-computation of the
published rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import transformers
from PIL import Image, ImageOps

from baton.anyres import best_resolution, unpadded
from baton.errors import ModelError
from baton_mm_preprocess.processors.any_processor import among
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.placeholders import Number, token_ids
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.processors.sizes import by_shorter_side
from tests.support.tiny_dual_encoders import picture

SIZES = [(64, 48), (17, 90), (301, 200), (31, 29), (700, 130)]
"""Widths and heights."""


def processor(architecture: str, config: dict[str, Any], image: dict[str, Any]) -> Any:
    family = FAMILIES[architecture]
    return processor_of(Files(config, image), family.kind, whatever=family.whatever)


def colored(image: Image.Image, mean: float = 0.5, std: float = 0.5) -> npt.NDArray[np.float64]:
    """[3, height, width]."""
    return (np.asarray(image).transpose(2, 0, 1) / 255 - mean) / std


def test_tiles_of_bee_and_r_4b_are_those_of_llava_onevision() -> None:
    settings = {"size": {"height": 30, "width": 30}, "image_grid_pinpoints": [[30, 60], [60, 60]]}
    config = {"vision_config": {"patch_size": 6}, "vision_aspect_ratio": "anyres_max_4"}
    known = processor("LlavaOnevisionForConditionalGeneration", config, settings)
    for name in ("Bee", "R"):
        own = settings | {"image_processor_type": f"{name}ImageProcessor"}
        assert processor(f"{name}ForConditionalGeneration", config, own) == known


def test_rows_of_tarsier_end_with_a_token_of_its_config() -> None:
    family = FAMILIES["TarsierForConditionalGeneration"]
    files = Files({"image_newline_idx": 7, "image_new_idx": 8}, {})
    pieces = family.placeholder_of(files)(None, (1, 1, 1), 9)
    assert token_ids(pieces, 5, lambda text: []) == [5, 5, 5, 7] * 3 + [8]
    with pytest.raises(ModelError, match="says nothing of 'image_new"):
        family.placeholder_of(Files({}, {}))


def test_keye_and_dots_ocr_cut_patches_of_images_of_any_size() -> None:
    """Both sides multiples of two patches within limits; short sides of Keye-VL's images are
    enlarged before."""
    limits = {"patch_size": 7, "merge_size": 2, "min_pixels": 1400, "max_pixels": 30_000}
    limits |= {"temporal_patch_size": 1, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    for width, height in [*SIZES, (5, 40), (300, 9)]:
        for name, enlarged in (
            ("KeyeForConditionalGeneration", True),
            ("KeyeVL1_5ForConditionalGeneration", True),
            ("DotsOCRForCausalLM", False),
        ):
            w, h = width, height
            if enlarged and h < 14:
                w, h = round(w * 14 / h), 14
            if enlarged and w < 14:
                w, h = 14, round(h * 14 / w)
            tall, wide = round(h / 14) * 14, round(w / 14) * 14
            if tall * wide > 30_000:
                beta = math.sqrt(h * w / 30_000)
                tall, wide = (max(14, math.floor(s / beta / 14) * 14) for s in (h, w))
            elif tall * wide < 1400:
                beta = math.sqrt(1400 / (h * w))
                tall, wide = (math.ceil(s * beta / 14) * 14 for s in (h, w))
            image = picture(width, height)
            found = processor(name, {}, limits)(image)
            assert found.grid == (1, tall // 7, wide // 7), (name, width, height)
            assert found.num_tokens == tall * wide // 14**2
            plane = colored(image.resize((wide, tall), Image.Resampling.BICUBIC))
            blocks = plane.reshape(3, tall // 14, 2, 7, wide // 14, 2, 7)
            expected = blocks.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3 * 49)
            assert np.abs(found.pixels - expected).max() < 1e-5, (name, width, height)


def tiles_of(image: Image.Image, columns: int, rows: int, side: int) -> list[Image.Image]:
    """The image at the size of a grid of tiles, cut row by row."""
    large = image.resize((columns * side, rows * side), Image.Resampling.BICUBIC)
    corners = [(column * side, row * side) for row in range(rows) for column in range(columns)]
    return [large.crop((x, y, x + side, y + side)) for x, y in corners]


def closest(width: int, height: int, grids: list[tuple[int, int]], side: int) -> tuple[int, int]:
    """Columns and rows of the grid with the closest aspect ratio."""
    best, least = (1, 1), math.inf
    for columns, rows in sorted(grids, key=math.prod):
        error = abs(width / height - columns / rows)
        half = width * height > 0.5 * side * side * columns * rows
        if error < least or (error == least and half):
            best, least = (columns, rows), error
    return best


def test_h2ovl_shows_a_single_image_on_two_scales() -> None:
    config = {"vision_config": {"image_size": 28, "patch_size": 7}, "use_msac": True}
    made = processor("H2OVLChatModel", config | {"max_dynamic_patch": 6}, {})
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    every = [(c, r) for c in range(1, 7) for r in range(1, 7) if c * r <= 6]
    for width, height in SIZES:
        image = picture(width, height)
        first = closest(width, height, every, 28)
        apart = [(c, r) for c, r in every if c * r >= 3 and first[0] % c and first[1] % r]
        second = closest(width, height, apart, 28)
        scales = []
        for columns, rows in (second, first):
            tiles = tiles_of(image, columns, rows, 28)
            scales.append(tiles + tiles_of(image, 1, 1, 28) if len(tiles) > 1 else tiles)
        tiles = [*scales[0][:-1], *scales[1][:-1], scales[0][-1]]
        expected = np.stack([(np.asarray(tile) / 255 - mean) / std for tile in tiles]).transpose(
            0, 3, 1, 2
        )
        found = made(image)
        assert found.num_tokens == 4 * len(tiles)
        assert np.abs(found.pixels - expected).max() < 1e-5, (width, height)
    assert among(made, 1) is made
    assert len(among(made, 2)(picture(30, 30)).pixels) == 1


@pytest.mark.row("F02.10")
def test_deepseek_vl2_puts_images_in_the_middle_of_gray() -> None:
    offered = [[28, 28], [28, 56], [56, 28], [84, 28]]
    config = {"vision_config": {"image_size": 28}, "candidate_resolutions": offered}
    made = processor("DeepseekVLV2ForCausalLM", config, {"patch_size": 7, "downsample_ratio": 2})
    for width, height in SIZES:
        image = picture(width, height)

        def worth(frame: list[int], size: tuple[int, int] = (width, height)) -> tuple[int, int]:
            scale = min(frame[0] / size[0], frame[1] / size[1])
            kept = min(int(size[0] * scale) * int(size[1] * scale), math.prod(size))
            return kept, -(math.prod(frame) - kept)

        wide, tall = max(offered, key=worth)
        tiles = [ImageOps.pad(image, (28, 28), color=(127, 127, 127))]
        plane = ImageOps.pad(image, (wide, tall), color=(127, 127, 127))
        tiles += [
            plane.crop((x, y, x + 28, y + 28))
            for y in range(0, tall, 28)
            for x in range(0, wide, 28)
        ]
        found = made(image)
        assert np.abs(found.pixels - np.stack([colored(tile) for tile in tiles])).max() < 1e-5
        assert found.grid == (1, tall // 28, wide // 28)
        assert found.num_tokens == 2 * 3 + 1 + tall // 28 * 2 * (wide // 28 * 2 + 1)
        assert among(made, 3)(image).grid == (1, 1, 1) and among(made, 2) is made


def test_minicpm_v_cuts_slices_as_its_successor_does() -> None:
    """transformers has MiniCPM-V 4.6, whose sides are multiples of more patches: with patches of
    half the size they are those of its predecessors."""
    family, config = FAMILIES["MiniCPMV"], {"vision_config": {"patch_size": 7}}
    with pytest.raises(ModelError, match="other ways than its config"):
        processor("MiniCPMV", config, {})
    settings = {"scale_resolution": 56, "max_slice_nums": 9, "patch_size": 14}
    for nested in (False, True):
        config = {"version": 2.5 if nested else 2.6, "query_num": 3}
        config |= {"vision_config": {"patch_size": 14}}
        own = processor("MiniCPMV", config, settings | {"use_image_id": not nested})
        known = transformers.MiniCPMV4_6ImageProcessorPil(
            scale_resolution=56, max_slice_nums=9, patch_size=7, downsample_mode="4x"
        )
        for size in SIZES:
            found, made = own(picture(*size)), known(picture(*size), return_tensors="np")
            tall, wide = made["grids"][0]
            parts = tall * wide + 1
            assert found.num_tokens == 3 * parts and found.grid == (1, *size[::-1])
            sizes = [(rows * 7, columns * 7) for rows, columns in made["target_sizes"]]
            expected, first = [], 0
            for rows, columns in sizes:
                count = rows * columns // 49
                strip = made["pixel_values"][0, :, :, 7 * first : 7 * (first + count)]
                first += count
                grid = strip.reshape(3, 7, rows // 7, columns // 7, 7).transpose(0, 2, 1, 3, 4)
                plane = grid.reshape(3, rows, columns)
                blocks = plane.reshape(3, rows // 14, 14, columns // 14, 14)
                expected.append(blocks.transpose(1, 3, 0, 2, 4).reshape(-1, 3 * 196))
            assert np.abs(found.pixels - np.concatenate(expected)).max() < 1e-5, size
            pieces = family.placeholder(own, found.grid, found.num_tokens)
            name = "image" if nested else "slice"
            row = f"<{name}>***</{name}>" * wide
            rows_of = "\n".join([row] * tall)
            rows_of = f"<slice>{rows_of}</slice>" if nested and tall else rows_of
            text = f"<image>***</image>{rows_of}"
            text = text if nested else f"<image_id>7</image_id>{text}"
            assert "".join(map(written, pieces)) == text, size


def test_minimax_vl_rounds_down_where_llava_next_rounds_up() -> None:
    settings = {"size": [28, 28], "process_image_mode": "anyres"}
    settings |= {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]}
    settings |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    config = {"vision_config": {"patch_size": 7}}
    made = processor("MiniMaxVL01ForConditionalGeneration", config, settings)
    for width, height in SIZES:
        image = picture(width, height)
        found = made(image)
        tall, wide = best_resolution((height, width), made.offered)
        if width / height > wide / tall:
            size = wide, int(wide * height / width)
        else:
            size = int(tall * width / height), tall
        plane = Image.new("RGB", (wide, tall))
        plane.paste(image.resize(size, 3), ((wide - size[0]) // 2, (tall - size[1]) // 2))
        corners = [(x, y) for y in range(0, tall, 28) for x in range(0, wide, 28)]
        tiles = [image.resize((28, 28), 3)]
        tiles += [plane.crop((x, y, x + 28, y + 28)) for x, y in corners]
        expected = np.stack([colored(tile) for tile in tiles])
        assert np.abs(found.pixels - expected).max() < 1e-5, (width, height)
        grid = unpadded((height, width), (tall // 7, wide // 7))
        assert found.num_tokens == 16 + grid[0] * (grid[1] + 1)
    with pytest.raises(ModelError, match="mode resize, not anyres"):
        resize = settings | {"process_image_mode": "resize"}
        processor("MiniMaxVL01ForConditionalGeneration", config, resize)


def test_ovis_2_5_enlarges_by_the_shorter_side() -> None:
    config = {"vit_config": {"patch_size": 7, "hidden_stride": 2}}
    made = processor("Ovis2_5", config, {"min_pixels": 14 * 14, "max_pixels": 30_000})
    for (width, height), (tall, wide) in {
        (10, 20): (28, 14),
        (20, 10): (14, 28),
        (100, 7): (14, 196),
        (64, 48): (42, 70),
    }.items():
        found = made(picture(width, height))
        assert found.grid == (1, tall // 7, wide // 7), (width, height)
        plane = colored(picture(width, height).resize((wide, tall), Image.Resampling.BICUBIC))
        blocks = plane.reshape(3, tall // 14, 2, 7, wide // 14, 2, 7)
        expected = blocks.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3 * 49)
        assert np.abs(found.pixels - expected).max() < 1e-5
    [count] = FAMILIES["Ovis2_5"].placeholder(made, (1, 2, 4), 2)
    assert count == 4, "and both ends"
    assert by_shorter_side((50, 20_000), 14) == (50, 10_000)
    assert by_shorter_side((20_000, 50), 14) == (10_000, 50)


def test_qwen_vl_makes_squares_of_the_size_that_its_config_names() -> None:
    config = {"visual": {"image_size": 28, "patch_size": 7, "n_queries": 4}}
    made, mean = processor("QwenVLForConditionalGeneration", config, {}), [0.481, 0.458, 0.408]
    for size in SIZES:
        found, image = made(picture(*size)), picture(*size).resize((28, 28), 3)
        small = np.asarray(image).transpose(2, 0, 1) / 255
        back = found.pixels * np.array([0.26862954, 0.26130258, 0.27577711])[:, None, None]
        assert np.abs(back + np.array(mean)[:, None, None] - small).max() < 1e-3, size
        assert (found.num_tokens, found.grid) == (4, (1, 1, 1))
    pieces = FAMILIES["QwenVLForConditionalGeneration"].placeholder(made, found.grid, 4)
    assert "".join(map(written, pieces)) == "Picture 8: <img>****</img>\n", "numbers from 1"


def written(piece: Any) -> str:
    """A piece of the placeholder of image 7, which is the eighth."""
    if isinstance(piece, Number):
        return str(7 + piece.first)
    return piece if isinstance(piece, str) else "*" * piece


def test_the_number_of_an_image_is_part_of_the_text_around_it() -> None:
    read: list[str] = []
    token_ids(["<a>", Number(), "</a>", 2], 5, lambda text: read.append(text) or [1], 12)
    assert read == ["<a>12</a>"]


@pytest.mark.row("V48", "V49")
def test_nemotron_nano_vl_cuts_tiles_by_its_config() -> None:
    """The first version weighs the aspect ratio by the area of the tiles, the second is InternVL's
    rule. Pixels are normed as the config or the processor says."""
    config = {"force_image_size": 28, "patch_size": 7, "downsample_ratio": 0.5}
    config |= {"norm_mean": [0.5] * 3, "norm_std": [0.25] * 3}
    grids = [(a, b) for a in range(1, 5) for b in range(1, 5) if a * b <= 4]
    for name in ("Llama_Nemotron_Nano_VL", "NemotronH_Nano_VL_V2"):
        own = processor(name, config | {"architectures": [name]}, {"max_num_tiles": 4})
        for width, height in SIZES:
            found = own(picture(width, height))
            assert found.num_tokens == 4 * len(found.pixels)
            if name.endswith("V2"):
                chat = {"vision_config": {"image_size": 28, "patch_size": 7}}
                other = processor("InternVLChatModel", chat | {"max_dynamic_patch": 4}, {})
                assert found.grid == other(picture(width, height)).grid
                continue
            scores = {
                (rows, columns): min(rows * columns * 28**2 / (width * height), 0.6)
                * math.exp(-abs(math.log(columns * height / (rows * width))))
                for rows, columns in grids
            }
            rows, columns = found.grid[1:]
            best = max(scores.values())
            assert scores[rows, columns] == pytest.approx(best)
            like = [g for g in grids if scores[g] == pytest.approx(best)]
            assert rows * columns == min(a * b for a, b in like)
            plane = picture(width, height).resize((28 * columns, 28 * rows), Image.BICUBIC)
            tile = colored(plane.crop((0, 0, 28, 28)), 0.5, 0.25)
            assert np.abs(found.pixels[0] - tile).max() < 1e-5


@pytest.mark.row("V37", "V38")
def test_deepseek_ocr_sees_the_whole_image_and_larger_ones_in_tiles() -> None:
    """The second version as transformers, the first by Pillow's own pad; both cut no image that a
    tile holds."""
    sizes = {"patch_size": 4, "min_crops": 2, "max_crops": 6, "base_size": 64, "image_size": 40}
    config = {"vision_config": {"width": {"sam_vit_b": {"image_size": 64}}}}
    first = processor("DeepseekOCRForCausalLM", config, sizes)
    settings = {"size": {"height": 64, "width": 64}, "tile_size": 48}
    config = {"vision_config": {"sam_config": {"image_size": 64}}, "patch_size": 4}
    second = processor("DeepseekOCR2ForCausalLM", config, settings)
    grids = [(c, r) for c in range(1, 7) for r in range(1, 7) if 2 <= c * r <= 6]
    reference = transformers.DeepseekOcr2ImageProcessorPil(**settings)
    for width, height in SIZES:
        image = picture(width, height)
        known = reference(image, return_tensors="np")
        local = known.get("pixel_values_local", np.zeros((0, 3, 48, 48)))
        expected = [*known["pixel_values"], *local]
        found = second(image)
        assert np.array_equal(found.pixels, np.concatenate([patchify(one, 4) for one in expected]))
        rows, columns = found.grid[1:]
        tiles = int(known["num_local_patches"][0])
        assert max(1, tiles) == rows * columns
        assert found.num_tokens == 16 + 9 * tiles + 1
        found = first(image)
        large = max(width, height) > 40
        columns, rows = closest(width, height, grids, 40) if large else (1, 1)
        assert found.grid == (1, rows, columns)
        tiles = rows * columns if large else 0
        ends = 4 + (3 * rows if tiles else 0)
        assert found.num_tokens == 16 + 9 * tiles + ends + 1
        views = [ImageOps.pad(image, (64, 64), color=(127,) * 3)]
        views += tiles_of(image, columns, rows, 40) if tiles else []
        patches = np.concatenate([patchify(colored(view), 4) for view in views])
        assert np.abs(found.pixels - patches).max() < 1e-5
    for name, other in (("DeepseekOCRForCausalLM", sizes), ("DeepseekOCR2ForCausalLM", settings)):
        with pytest.raises(ModelError, match="and its encoder takes 1024 and"):
            processor(name, {}, other)
    with pytest.raises(ModelError, match="crop_to_patches"):
        processor("DeepseekOCR2ForCausalLM", {}, {"crop_to_patches": False})


@pytest.mark.row("V24")
def test_hyperclova_x_pads_whole_image_and_tiles_with_the_mean_color() -> None:
    offered = [[28, 28], [28, 56], [56, 28], [56, 56], [84, 28]]
    config = {"vision_config": {"image_size": 28, "patch_size": 7}}
    config |= {"num_queries_vis_abstractor_image": 9}
    settings = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    settings |= {"anyres": True, "unpad": True, "possible_resolutions": offered}
    settings |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    made = processor("HCXVisionForCausalLM", config, settings)
    for width, height in [*SIZES, (49, 21)]:
        image = picture(width, height)
        tall, wide = best_resolution((height, width), made.offered)
        long = (28, math.ceil(height / width * 28))
        size = long if width >= height else (math.ceil(width / height * 28), 28)
        scale = min(wide / width, tall / height)
        fit = min(math.ceil(width * scale), wide), min(math.ceil(height * scale), tall)
        views = []
        for frame, inner in (((28, 28), size), ((wide, tall), fit)):
            view = Image.new("RGB", frame, (127, 127, 127))
            corner = (frame[0] - inner[0]) // 2, (frame[1] - inner[1]) // 2
            view.paste(image.resize(inner, 3), corner)
            views.append(view)
        corners = [(x, y) for y in range(0, tall, 28) for x in range(0, wide, 28)]
        tiles = [views[0], *(views[1].crop((x, y, x + 28, y + 28)) for x, y in corners)]
        found = made(image)
        expected = np.stack([colored(tile) for tile in tiles])
        assert np.abs(found.pixels - expected).max() < 1e-5, (width, height)
        rows, columns = tall // 28 * 3, wide // 28 * 3
        if width / height > columns / rows:
            rows -= (rows - int(height * (columns / width))) // 2 * 2
        else:
            columns -= (columns - int(width * (rows / height))) // 2 * 2
        assert found.num_tokens == 9 + rows * columns + rows
    for field, match in (("anyres", "no padded tiles"), ("possible_resolutions", "no sizes")):
        with pytest.raises(ModelError, match=match):
            processor("HCXVisionForCausalLM", config, settings | {field: type(settings[field])()})
    with pytest.raises(ModelError, match="differ in the size"):
        processor("HCXVisionForCausalLM", {"vision_config": {"image_size": 30}}, settings)


@pytest.mark.row("V28")
def test_kanana_v_enlarges_narrow_images_first_and_writes_a_line_for_each_row() -> None:
    limits = {"patch_size": 7, "min_pixels": 1400, "max_pixels": 30_000}
    family = FAMILIES["KananaVForConditionalGeneration"]
    made = processor("KananaVForConditionalGeneration", {}, limits)
    known = processor("Qwen2VLForConditionalGeneration", {}, limits)
    for width, height in [*SIZES, (5, 40), (300, 9)]:
        image = picture(width, height)
        if min(width, height) < 14:
            scale = 14 / min(width, height)
            image = image.resize((int(width * scale), int(height * scale)), 3)
        found, same = made(picture(width, height)), known(image)
        assert found.grid == same.grid and np.array_equal(found.pixels, same.pixels)
        rows, columns = found.grid[1] // 2, found.grid[2] // 2
        pieces = family.placeholder(made, found.grid, found.num_tokens)
        assert "".join(map(written, pieces)) == f"\n{'*' * columns}" * rows
    config = {"text_config": {"eos_token_id": 7}}
    assert family.image_token(Files(config, {}), lambda text: []) == 8
