"""Embeddings out of files of tensors; tests of the whole system send the others."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from safetensors.torch import save

from baton.errors import InvalidRequest
from baton_mm_preprocess.image.embeddings import read_embeddings
from baton_mm_preprocess.processors import placeholders
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers.files import Files


def test_numbers_of_sixteen_and_thirty_two_bits() -> None:
    made = torch.randn(1, 3, 4).to(torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape in ((1, 3, 4), (3, 4)):
            given = made.to(dtype).view(shape)
            found = read_embeddings(save({"x": given}, {"made": "here"}), 4)
            assert found.dtype == np.float32 and np.array_equal(found, given.float().view(3, 4))
    file = io.BytesIO()
    np.save(file, np.ones((3, 4), np.float16))
    assert np.array_equal(read_embeddings(file.getvalue(), 4), np.ones((3, 4)))


def test_what_is_no_tensor_of_embeddings_is_refused() -> None:
    whole = save({"x": torch.ones(3, 4)})
    file = io.BytesIO()
    np.save(file, np.ones((3, 4), np.int64))
    code = file.getvalue().replace(b"'<i8'", b"'|O' ")
    cases = {
        whole[:-1]: "no safetensors file",
        b"\xff" * 20: "no safetensors file",
        b"": "no safetensors file",
        save({"x": torch.ones(0, 4)}): "[0, 4]",
        save({"x": torch.ones(2, 3, 4)}): "[2, 3, 4]",
        file.getvalue(): "int64",
        code: "cannot be read",
    }
    for data, why in cases.items():
        with pytest.raises(InvalidRequest, match="cannot be used") as caught:
            read_embeddings(data, 4)
        assert why in caught.value.message, data


def test_models_whose_images_have_sizes_take_none() -> None:
    """Positions of Qwen2-VL and the tokens of Pixtral follow from them."""
    vision = {"image_size": 28, "patch_size": 7}
    taken = {
        "LlavaForConditionalGeneration": {"size": {"shortest_edge": 28}, "crop_size": 28},
        "MllamaForConditionalGeneration": {"size": {"height": 28, "width": 28}},
        "Qwen2VLForConditionalGeneration": {},
        "PixtralForConditionalGeneration": {"patch_size": 7},
        "Gemma3ForConditionalGeneration": {},
    }
    found = [
        placeholders.takes_embeds(
            processor_of(Files({"vision_config": vision}, image), FAMILIES[name].kind),
            FAMILIES[name].placeholder,
        )
        for name, image in taken.items()
    ]
    assert found == [True, True, False, False, False]
