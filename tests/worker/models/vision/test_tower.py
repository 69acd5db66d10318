"""Vision towers against transformers, on tiny random checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton_mm_preprocess.model_info import read_model
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.layers.vision.grid import patchify
from baton_worker.models.decoder import Model
from baton_worker.models.vision.tower import VisionTower
from tests.oracles.checkpoints import MAKERS
from tests.oracles.ropes import qwen3_vision
from tests.support import tiny_llava
from tests.support.tiny_towers import TOWERS, internvl_chat, opencua, tiny_tower

Images = list[tuple[Tensor, tuple[int, int, int]]]
Look = tuple[Images, list[Tensor], dict[str, Any] | None]
"""Images as the tower takes them, their embeddings by transformers, and what its model takes of
the first image; None if embeddings do not say all."""


def square(model: Any, make: Callable[..., Tensor]) -> Look:
    """Images of one size."""
    side = model.config.vision_config.image_size
    side = side if isinstance(side, int) else side[0]
    pixels = make(3, 3, side, side)
    body = model if hasattr(model, "get_image_features") else model.model
    found = body.get_image_features(pixel_values=pixels, **defaults(model))
    expected = found.pooler_output
    if expected is None:  # Llama 4 projects later.
        expected = model.multi_modal_projector(found.last_hidden_state)
    whole = None if model.config.model_type in NOT_SPLICED else {"pixel_values": pixels[:1]}
    return [(image, (1, 1, 1)) for image in pixels], list(expected), whole


def defaults(model: Any) -> dict[str, Any]:
    names = ("vision_feature_layer", "vision_feature_select_strategy", "vision_aspect_ratio")
    return {n: getattr(model.config, n) for n in names if hasattr(model.config, n)}


def any_resolution(model: Any, make: Callable[..., Tensor]) -> Look:
    """Whole images and tiles."""
    side = model.config.vision_config.image_size
    sizes, counts = [(50, 41), (17, 90), (64, 30)], [5, 4, 4]
    images = [make(count, 3, side, side) for count in counts]
    padded = torch.zeros(3, 5, 3, side, side)
    for row, image in zip(padded, images, strict=True):
        row[: len(image)] = image
    found = model.get_image_features(
        pixel_values=padded, image_sizes=torch.tensor(sizes), **defaults(model)
    )
    grids = [(1, *size) for size in sizes]
    whole = {"pixel_values": padded[:1], "image_sizes": torch.tensor(sizes[:1])}
    return list(zip(images, grids, strict=True)), list(found.pooler_output), whole


def any_size(model: Any, make: Callable[..., Tensor]) -> Look:
    """Images of several sizes as patches."""
    patch = model.config.vision_config.patch_size
    merge = getattr(model.config, "spatial_merge_size", 1)
    sizes = [(32, 24), (8, 40), (32, 24)]
    padded = torch.zeros(3, 3, 32, 40)
    images = [make(3, *size) for size in sizes]
    for row, image in zip(padded, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    found = model.get_image_features(
        pixel_values=padded, image_sizes=torch.tensor(sizes), **defaults(model)
    ).pooler_output
    made: Images = [
        (patchify(image[None], patch, merge)[0], (1, tall // patch, wide // patch))
        for image, (tall, wide) in zip(images, sizes, strict=True)
    ]
    whole = {"pixel_values": padded[:1], "image_sizes": torch.tensor(sizes[:1])}
    return made, list(found), whole


def grids(model: Any, make: Callable[..., Tensor]) -> Look:
    """Patches of images and of a clip, in windows that are merged."""
    vision = model.config.vision_config
    sizes = [(1, 6, 10), (1, 12, 8), (2, 4, 6)]
    # GLM's positions are wrong for clips among images; ERNIE's resampler pairs the frames of clips.
    if model.config.model_type.startswith(("glm", "ernie")):
        sizes[-1] = (1, 4, 6)
    wide = 3 * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    images = [make(t * h * w, wide) for t, h, w in sizes]
    alone = model.config.model_type == "video_llama_3"
    more = {"image_merge_sizes": torch.ones(3, dtype=torch.long)} if alone else {}
    found = model.get_image_features(torch.cat(images), torch.tensor(sizes), **more)
    parts = list(found.pooler_output)
    if deep := getattr(found, "deepstack_features", None):
        parts = [torch.cat([part, *more], dim=-1) for part, *more in zip(parts, *deep, strict=True)]
    return list(zip(images, sizes, strict=True)), parts, None


def pooled(model: Any, make: Callable[..., Tensor]) -> Look:
    """Images of several sizes; patches are row by row for transformers, padded and with the
    channels last, and their colours are from 0 to 1."""
    side, images = model.config.vision_config.patch_size, Images()
    expected, first = list[Tensor](), dict[str, Tensor]()
    for rows, columns in ((6, 9), (3, 15), (12, 3)):
        pixels = make(3, rows * side, columns * side)
        cells = patchify(pixels[None] / 2 + 0.5, side, 1)[0].unflatten(1, (3, -1)).transpose(1, 2)
        plain, places = torch.zeros(1, 63, 3 * side**2), torch.full((1, 63, 2), -1)
        plain[0, : len(cells)] = cells.flatten(1)
        grid = torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy")
        places[0, : len(cells)] = torch.stack(grid, dim=-1).flatten(0, 1)
        given = {"pixel_values": plain, "image_position_ids": places}
        expected.append(torch.cat(list(model.model.get_image_features(**given).pooler_output)))
        first = first or given
        images.append((patchify(pixels[None], side, 3)[0], (1, rows, columns)))
    return images, expected, first


def tiles(model: Any, make: Callable[..., Tensor]) -> Look:
    """Several tiles of one image, and one of another."""
    side = model.config.vision_config.image_size
    images = [make(count, 3, side, side) for count in (3, 1)]
    expected = [
        torch.cat(list(model.get_image_features(pixel_values=image[None]).pooler_output))
        for image in images
    ]
    whole = {"pixel_values": images[0][None]}
    return [(images[0], (1, 1, 2)), (images[1], (1, 0, 0))], expected, whole


def patches(model: Any, make: Callable[..., Tensor]) -> Look:
    """Patches row by row for transformers, in windows for the tower."""
    sizes, side = [(1, 6, 4), (1, 2, 8), (1, 6, 6)], model.config.vision_config.patch_size
    images = [make(3, rows * side, columns * side) for _, rows, columns in sizes]
    plain = torch.cat([patchify(image[None], side, 1)[0] for image in images])
    shape = (-1,) if model.config.model_type == "hunyuan_vl" else (3, side, side)
    found = model.get_image_features(plain.view(len(plain), *shape), torch.tensor(sizes))
    own = [patchify(image[None], side, 2)[0] for image in images]
    return list(zip(own, sizes, strict=True)), list(found.pooler_output), None


def clips(model: Any, make: Callable[..., Tensor]) -> Look:
    """Images, and clips of three frames and of six, which are four and two for transformers."""
    side, images, expected = model.config.vision_config.patch_size, Images(), list[Tensor]()
    for grid, chunks in (((1, 6, 4), [1]), ((3, 2, 8), [3]), ((6, 4, 4), [4, 2])):
        frames = make(grid[0], 3, grid[1] * side, grid[2] * side)
        images.append((patchify(frames, side, 2).flatten(0, 1), grid))
        plain = patchify(frames, side, 1).view(-1, 3, side, side)
        grids = torch.tensor([[count, *grid[1:]] for count in chunks])
        expected.append(torch.cat(list(model.get_video_features(plain, grids).pooler_output)))
    return images, expected, None


def split(model: Any, make: Callable[..., Tensor]) -> Look:
    """Tiles and the whole image, and a small image; patches are padded for transformers, row by
    row and with the channels last."""
    side, images = model.config.vision_config.patch_size, Images()
    expected, first = list[Tensor](), dict[str, Tensor]()
    for size, shapes in (((60, 40), [(4, 4)] * 2 + [(6, 4)]), ((20, 30), [(4, 4)])):
        parts = [make(3, rows * side, columns * side) for rows, columns in shapes]
        plain = torch.zeros(len(parts), 24, 3 * side**2)
        for row, part in zip(plain, parts, strict=True):
            cells = patchify(part[None], side, 1)[0].unflatten(1, (3, -1)).transpose(1, 2)
            row[: len(cells)] = cells.flatten(1)
        mask = (plain != 0).any(-1).int()
        given = {"pixel_values": plain, "spatial_shapes": torch.tensor(shapes)}
        given["pixel_attention_mask"] = mask
        expected.append(torch.cat(list(model.get_image_features(**given).pooler_output)))
        first = first or given
        own = torch.cat([patchify(part[None], side, 2)[0] for part in parts])
        images.append((own, (1, *size)))
    return images, expected, first


def padded(model: Any, make: Callable[..., Tensor]) -> Look:
    """Images in the corner of squares of two sizes, of which a mask says what is padding."""
    images, expected, first = Images(), list[Tensor](), dict[str, Tensor]()
    for side, tall, wide in ((30, 18, 30), (15, 15, 8), (30, 30, 30)):
        pixels, mask = make(1, 3, side, side), torch.zeros(1, side, side, dtype=torch.bool)
        mask[:, :tall, :wide] = True
        given = {"pixel_values": pixels, "pixel_mask": mask}
        expected += list(model.get_image_features(**given).pooler_output)
        first = first or given
        rows, columns = -(-tall // 5), -(-wide // 5)
        seen = pixels[:, :, : rows * 5, : columns * 5]
        images.append((patchify(seen, 5, 1)[0], (1, rows, columns)))
    return images, expected, first


def marked(model: Any, make: Callable[..., Tensor]) -> Look:
    """A whole image with its tiles, and one without."""
    images, marks = [make(5, 3, 24, 24), make(1, 3, 24, 24)], None
    parts = list[Tensor]()
    for image in images:
        found = model.get_image_features(pixel_values=image)
        parts, marks = [*parts, *found.pooler_output], found.visual_indicator_features
    start, grid, column, row, end = marks[:, None]
    first = [
        start,
        parts[0],
        grid,
        parts[1],
        column,
        parts[2],
        row,
        parts[3],
        column,
        parts[4],
        end,
    ]
    expected = [torch.cat(first), torch.cat([start, parts[5], grid, end])]
    return [(images[0], (1, 2, 2)), (images[1], (1, 1, 1))], expected, None


def tiles_first(model: Any, make: Callable[..., Tensor]) -> Look:
    """Two tiles and the whole image, and a small image; tiles have 9/13 of its side."""
    side = model.config.vision_config.patch_size
    local, wholes, counts = make(2, 3, 9 * side, 9 * side), make(2, 3, 13 * side, 13 * side), [2, 0]
    found = model.get_image_features(wholes, local, counts)
    cells = [torch.cat(list(patchify(part, side, 1))) for part in (local, wholes[:1], wholes[1:])]
    given = {"pixel_values": wholes[:1], "pixel_values_local": local, "num_local_patches": [2]}
    images = [(torch.cat(cells[:2]), (1, 1, 2)), (cells[2], (1, 1, 1))]
    return images, list(found.pooler_output), given


NOT_SPLICED = ("llama4",)
"""Whose class cannot run as a whole."""
BOTH_WAYS = ("gemma3", "gemma4-both-ways")
"""Whose image tokens see one another in both directions."""
PREFIX_LMS = ("paligemma", "paligemma2")
"""In whose prompts all tokens do."""
LOOKS: dict[str, Callable[..., Look]] = {
    "pixtral": any_size,
    "gemma4": pooled,
    "gemma4-both-ways": pooled,
    "mistral3": any_size,
    "aria": padded,
    "idefics3": tiles,
    "smolvlm": tiles,
    "qwen2-vl": grids,
    "qwen2.5-vl": grids,
    "qwen3-vl": grids,
    "qwen3-vl-moe": grids,
    "glm4v": grids,
    "glm4v-moe": grids,
    "hunyuan-vl": patches,
    "paddleocr-vl": patches,
    "glm-4.6v": grids,
    "video-llama-3": grids,
    "exaone-4.5": grids,
    "hyperclovax-v2": grids,
    "glm-ocr": grids,
    "ernie-vl": grids,
    "qwen3-omni": grids,
    "qwen3.5": grids,
    "qwen3.5-moe": grids,
    "llava-next-video": any_resolution,
    "lfm2-vl": split,
    "ovis2": marked,
    "step-3.7": tiles_first,
    "kimi-k2.5": clips,
    "lighton-ocr": any_size,
    "llava-next": any_resolution,
    "llava-onevision": any_resolution,
}


CPU = BuildContext(torch.device("cpu"), torch.float32)
ROWS = (
    "V01",
    "V02",
    "V05",
    "V25",
    "V27",
    "V41",
    "V03",
    "V04",
    "V06",
    "V08",
    "V09",
    "V10",
    "V11",
    "V13",
    "V15",
    "V16",
    "V26",
    "V42",
    "V46",
    "V50",
    "V51",
    "V22",
    "V23",
    "V31",
    "V63",
    "F01.08",
    "F01.09",
    "F01.10",
    "F01.11",
    "F01.14",
    "F01.17",
    "F01.29",
    "F01.30",
    "V21",
    "F01.04",
    "F01.06",
    "F01.13",
    "F01.19",
)


@pytest.mark.row("F01.01", "F01.02", "F01.03", "F01.15", "F01.16", "F01.20", "V61", *ROWS)
def test_towers_make_the_numbers_of_transformers(tmp_path: Path, driver: Any) -> None:
    """And their text models, which are those of other architectures, still answer."""
    generator = torch.Generator().manual_seed(1)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    for name in TOWERS.keys() - {"chameleon", "mllama"}:  # No embeddings take a place.
        reference = tiny_tower(name, tmp_path / name)
        with torch.no_grad():
            images, expected, whole = LOOKS.get(name, square)(reference, make)
        loaded = load_model(tmp_path / name, CPU)
        compare(loaded, images, expected, name)
        step = driver(loaded, 1).step
        torch.testing.assert_close(
            *answers(step, reference, whole, expected[0], name), rtol=1e-3, atol=1e-3, msg=name
        )


def answers(
    step: Any, reference: Any, whole: dict[str, Any] | None, seen: Tensor, name: str
) -> tuple[Tensor, Tensor]:
    """Logits of a text, with an image in its midst if the embeddings alone say it: ours, and those
    of transformers."""
    # The forward of Llama 4 as a whole fails in transformers.
    reference = reference.language_model if name == "llama4" else reference
    text, media, last = list(range(2, 40)), None, None
    if whole is not None:
        text[8:8] = [319] * len(seen)
        media = MediaEmbeddings(torch.arange(8, 8 + len(seen)), seen)
    if name in BOTH_WAYS:
        kind = "mm_token_type_ids" if name.startswith("gemma4") else "token_type_ids"
        whole = {kind: (torch.tensor([text]) == 319).int(), **(whole or {})}
        last = [max(at, 7 + len(seen)) if text[at] == 319 else at for at in range(len(text))]
    if name in PREFIX_LMS:
        whole = {"token_type_ids": torch.zeros(1, len(text), dtype=torch.int), **(whole or {})}
        last = [len(text) - 1] * len(text)
    with torch.no_grad():
        logits = reference(input_ids=torch.tensor([text]), **whole or {}).logits[0]
    return step({0: text}, media, last)[0], logits


def compare(loaded: LoadedModel, images: Images, expected: list[Tensor], name: str) -> None:
    assert isinstance(loaded.model, Model)
    tower = loaded.model.vision
    assert tower is not None, name
    largest = tower.sample_media(40)
    assert not any(tower.refusal(shape, grid) for shape, grid in largest), name
    most = 500 if name == "step-3.7" else 200  # An image of it may have 49 tiles.
    assert 40 <= sum(tower.num_tokens(shape, grid) for shape, grid in largest) < most, name
    found = tower.encode_media([image for image, _ in images], [grid for _, grid in images])
    for (image, grid), one, other in zip(images, found, expected, strict=True):
        assert not tower.refusal(image.shape, grid), name
        assert len(one) == tower.num_tokens(image.shape, grid), name
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=name)


def test_internvl_as_its_makers_save_it(tmp_path: Path) -> None:
    reference = internvl_chat(tmp_path)
    pixels = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = list(reference.get_image_features(pixels, **defaults(reference)).pooler_output)
    loaded = load_model(tmp_path, CPU)
    compare(loaded, [(image, (1, 1, 1)) for image in pixels], expected, "internvl-chat")
    assert isinstance(loaded.model, Model) and loaded.model.vision is not None
    assert loaded.model.vision.image_token == loaded.vocab_size - 7


@pytest.mark.row("V17", "V40")
def test_other_names_of_a_checkpoint_are_the_same_model(tmp_path: Path) -> None:
    """Those that makers write where transformers has another class."""
    names = {
        "InternS1ForConditionalGeneration": "internvl",
        "LightOnOCRForConditionalGeneration": "lighton-ocr",
        "PixtralForConditionalGeneration": "pixtral",
    }
    for architecture, name in names.items():
        tiny_tower(name, folder := tmp_path / name)
        config = folder / "config.json"
        fields = json.loads(config.read_text())
        specs = []
        for written in (fields["architectures"][0], architecture):
            config.write_text(json.dumps(fields | {"architectures": [written]}))
            specs.append(load_model(folder, CPU).spec)
        assert specs[0] == specs[1], architecture


@pytest.mark.row("V50")
def test_hunyuan_vl_as_its_makers_save_it(tmp_path: Path) -> None:
    reference, tensors = tiny_tower("hunyuan-vl", tmp_path), dict[str, Tensor]()
    images, expected, _ = patches(reference, torch.randn)
    layer = r"^(vit\.layers\.\d+)\."
    own = (
        *((r"^model\.vision_tower", "vit"), (r"^model\.language_model", "model")),
        *((rf"{layer}layer_norm1", r"\1.input_layernorm"), (r"patch_merger", "perceive")),
        (rf"{layer}layer_norm2", r"\1.post_attention_layernorm"),
        *((rf"{layer}mlp\.fc1", r"\1.mlp.dense_h_to_4h"), (r"proj_conv", "proj.0")),
        *((rf"{layer}mlp\.fc2", r"\1.mlp.dense_4h_to_h"), (r"proj_out", "proj.2")),
    )
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        for pattern, to in own:
            name = re.sub(pattern, to, name)
        tensors[name] = tensor
    assert (
        "vit.perceive.proj.2.weight" in tensors and "vit.layers.0.mlp.dense_h_to_4h.bias" in tensors
    )
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    compare(load_model(tmp_path, CPU), images, expected, "hunyuan-vl")


@pytest.mark.row("F01.17")
def test_the_thinker_of_a_model_that_hears_and_speaks(tmp_path: Path) -> None:
    """Qwen3-Omni as Qwen saves it: what speaks stays unread."""
    reference, tensors = tiny_tower("qwen3-omni", tmp_path), dict[str, Tensor]()
    with torch.no_grad():
        images, expected, _ = grids(reference, torch.randn)
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        tensors[f"thinker.{name}"] = tensor
    tensors |= {"talker.codec_head.weight": torch.ones(2, 2), "code2wav.a.bias": torch.ones(2)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = tmp_path / "config.json"
    fields = {"thinker_config": json.loads(config.read_text()), "im_end_token_id": 7}
    architecture = "Qwen3OmniMoeForConditionalGeneration"
    config.write_text(json.dumps(fields | {"architectures": [architecture]}))
    loaded = load_model(tmp_path, CPU)
    compare(loaded, images, expected, "qwen3-omni")
    assert loaded.eos_token_ids == (7,)
    settings = {"patch_size": 4, "image_processor_type": "Qwen2VLImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    seen = read_model(tmp_path, "m")
    assert seen.images is not None and seen.images.image_token == 319
    assert seen.audio is not None and seen.audio.audio_token == 317


@pytest.mark.row("V56")
def test_opencua_counts_tokens_alone(tmp_path: Path, driver: Any) -> None:
    """On one axis, M-RoPE is the rope of Qwen2."""
    reference = opencua(tmp_path)
    images, expected, _ = grids(reference, torch.randn)
    loaded = load_model(tmp_path, CPU)
    compare(loaded, images, expected, "opencua")
    step, seen = driver(loaded, 1).step, expected[0]
    ours, logits = answers(step, reference, None, seen, "opencua")
    torch.testing.assert_close(ours, logits, rtol=1e-3, atol=1e-3)
    assert isinstance(loaded.model, Model) and loaded.model.vision is not None
    assert loaded.model.vision.image_token == 319


@pytest.mark.row("V18")
def test_intern_s1_pro_sees_as_qwen3_vl(tmp_path: Path, driver: Any) -> None:
    """Its encoder is that of transformers' Qwen3-VL; its text model, of which `test_parity` has an
    oracle, takes the embeddings in the place of placeholders on one axis of positions."""
    MAKERS["InternS1ProForConditionalGeneration"](tmp_path)
    reference, _ = qwen3_vision()
    sizes, generator = [(1, 6, 4), (1, 4, 8)], torch.Generator().manual_seed(1)
    images = [torch.randn(h * w, 3 * 2 * 4**2, generator=generator) for _, h, w in sizes]
    with torch.no_grad():
        found = reference(torch.cat(images), torch.tensor(sizes))
    parts = [found.pooler_output, *found.deepstack_features]
    expected = list(torch.cat(parts, dim=-1).split([h * w // 4 for _, h, w in sizes]))
    loaded = load_model(tmp_path, CPU)
    compare(loaded, list(zip(images, sizes, strict=True)), expected, "interns1-pro")
    assert loaded.spec.position_axes == 1
    text = [*range(2, 10), *[319] * 6, *range(10, 20)]
    media = MediaEmbeddings(torch.arange(8, 14), expected[0])
    seen, blind = (driver(loaded, 1).step({0: text}, shown)[0] for shown in (media, None))
    assert torch.equal(seen[:8], blind[:8]) and not torch.allclose(seen[8:], blind[8:], atol=1e-3)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    tiny_tower("qwen2-vl", tmp_path)
    model = load_model(tmp_path, CPU).model
    assert isinstance(model, Model) and model.vision is not None
    wide = 3 * 2 * 4 * 4
    for shape, grid in [
        ((24, wide), (1, 4, 7)),
        ((24, wide), (1, 3, 8)),
        ((24, wide - 1), (1, 4, 6)),
        ((3, 8, 8), (1, 1, 1)),
        ((0, 3, 8, 8), (1, 1, 1)),
    ]:
        assert model.vision.refusal(shape, grid), (shape, grid)
    assert not model.vision.refusal((24, wide), (1, 4, 6))


@pytest.mark.parametrize("strategy", ["default", "full"])
def test_the_class_token_is_seen_or_not(tmp_path: Path, strategy: str) -> None:
    reference = tiny_llava.save(tmp_path)
    config = tmp_path / "config.json"
    said = '"vision_feature_select_strategy": "default"'
    assert said in config.read_text()
    config.write_text(config.read_text().replace(said, said.replace("default", strategy)))
    tower = load_model(tmp_path, CPU).model.vision
    assert isinstance(tower, VisionTower)
    pixels, grid = torch.randn(2, 3, 30, 30), (1, 1, 1)
    with torch.inference_mode():
        wanted = reference.get_image_features(
            pixels, vision_feature_select_strategy=strategy
        ).pooler_output
    found = tower.encode_media(list(pixels), [grid] * 2)
    assert tower.num_tokens((3, 30, 30), grid) == len(found[0]) == 16 + (strategy == "full")
    assert tower.progress == 2, "the last layer of three is not run"
    for ours, expected in zip(found, wanted, strict=True):
        assert torch.allclose(ours, expected, atol=1e-4)
    assert "expected" in tower.refusal((3, 31, 30), grid) and not tower.refusal((3, 30, 30), grid)
