"""Pixels to tensors, number for number as transformers makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image

from baton.errors import ModelError
from baton_mm_preprocess.image.processor import KINDS, Processor, read_processor
from tests.support.tiny_dual_encoders import PROCESSORS, picture

SIZES = [(64, 48), (48, 64), (30, 30), (17, 90), (1, 1), (5, 1), (301, 200), (31, 29)]


def reference(kind: str, settings: dict[str, Any], image: Image.Image) -> Any:
    made = getattr(transformers, f"{kind}Pil")(**settings)
    return np.stack(made(image)["pixel_values"])[0]


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("CLIPModel", {}),
        ("CLIPModel", {"resample": 2}),
        ("CLIPModel", {"size": {"height": 21, "width": 37}}),
        ("CLIPModel", {"crop_size": {"height": 45, "width": 20}}),
        ("CLIPModel", {"do_resize": False}),
        ("CLIPModel", {"do_normalize": False}),
        ("CLIPModel", {"do_rescale": False, "image_mean": 0.5, "image_std": 2.0}),
        ("CLIPModel", {"do_center_crop": False}),
        ("SiglipModel", {}),
        ("SiglipModel", {"resample": 2, "size": {"height": 33, "width": 12}}),
    ],
)
def test_equal_to_transformers(architecture: str, changes: dict[str, Any]) -> None:
    settings = PROCESSORS[architecture] | changes
    kind = settings["image_processor_type"]
    for size in SIZES:
        expected = reference(kind, settings, picture(*size))
        found = read_processor(settings, "")(picture(*size))
        assert found.dtype == np.float32 and found.flags.c_contiguous
        assert np.array_equal(found, expected), size


@pytest.mark.parametrize("kind", ["CLIPImageProcessor", "SiglipImageProcessor"])
def test_what_a_file_leaves_out_is_what_transformers_takes(kind: str) -> None:
    image = picture(300, 260)
    assert np.array_equal(read_processor({}, kind)(image), reference(kind, {}, image))


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("CLIPFeatureExtractor", {"size": 30, "crop_size": 28}, Processor(30, None, crop=(28, 28))),
        ("SiglipImageProcessor", {"size": 30}, Processor(size=(30, 30))),
    ],
)
def test_old_files_say_one_number(kind: str, given: dict[str, Any], expected: Processor) -> None:
    found = read_processor({"feature_extractor_type": kind} | given, "")
    assert (found.edge, found.size, found.crop) == (expected.edge, expected.size, expected.crop)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image_processor_type": "PixtralImageProcessor"}, "Pixtral.* is not supported, only"),
        ({"do_pad": True}, "asks for do_pad"),
        ({"size": {"longest_edge": 9}}, "makes no sense: size"),
        ({"size": {"shortest_edge": 0}}, "0 pixels"),
        ({"size": {"shortest_edge": 1e9}}, "pixels"),
        ({"size": "big"}, "makes no sense"),
        ({"resample": 77}, "makes no sense"),
        ({"image_mean": [0.5]}, "1 channels"),
        ({"crop_size": {"height": 3}}, "width"),
    ],
)
def test_other_processors_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_processor(given, "CLIPImageProcessor")


def test_the_shape_is_known_before_any_image() -> None:
    assert read_processor(PROCESSORS["CLIPModel"], "").shape == (30, 30)
    assert read_processor(PROCESSORS["SiglipModel"], "").shape == (30, 30)
    free = PROCESSORS["CLIPModel"] | {"do_center_crop": False}
    assert read_processor(free, "").shape is None
    sides = {"Blip": 384, "Chameleon": 512}
    for kind in KINDS:
        side = sides.get(kind.partition("Image")[0], 224)
        assert read_processor({}, kind).shape == (side, side), kind
