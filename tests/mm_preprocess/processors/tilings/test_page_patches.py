"""Pages of Nemotron Parse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from baton.errors import ModelError
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.readers.files import Files
from tests.support.tiny_dual_encoders import picture


@pytest.mark.row("V62")
def test_a_page_is_never_enlarged_and_lies_in_the_middle_of_white() -> None:
    """Each pixel of a smaller one comes from four neighbours, to the next byte, as in OpenCV."""
    family = FAMILIES["NemotronParseForConditionalGeneration"]
    config = {"image_size": [56, 42], "encoder": {"patch_size": 7}, "decoder": {"eos_token_id": 2}}
    files = Files(config, {})
    made = processor_of(files, family.kind, whatever=family.whatever)
    mean = np.array([0.48145466, 0.4578275, 0.40821073])[:, None, None]
    std = np.array([0.26862954, 0.26130258, 0.27577711])[:, None, None]
    for (width, height), (wide, tall) in {
        (30, 20): (30, 20),
        (44, 112): (22, 56),
        (200, 100): (42, 21),
        (700, 3): (42, 1),
    }.items():
        image = torch.from_numpy(np.asarray(picture(width, height)).copy()).permute(2, 0, 1)
        small = F.interpolate(image[None].float(), (tall, wide), mode="bilinear")[0].round()
        page = torch.full((3, 56, 42), 255.0)
        top, left = (56 - tall) // 2, (42 - wide) // 2
        page[:, top : top + tall, left : left + wide] = small
        found = made(picture(width, height))
        expected = patchify((page.numpy() / 255 - mean) / std, 7)
        assert np.abs(found.pixels - expected).max() < 0.02, "one step of a byte"
        assert found.grid == (1, 8, 6) and found.num_tokens == 8 * 1 + 1
    assert family.image_token(files, lambda text: []) == 2
    with pytest.raises(ModelError, match="no whole patches"):
        processor_of(Files(config | {"image_size": [56, 44]}, {}), family.kind, whatever=True)
    start = Files(config | {"decoder_start_token_id": 5}, {})
    assert family.image_token(start, lambda text: []) == 5
