"""Crops of Molmo 2, by their published rules: the processor of transformers needs torchvision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from baton.errors import ModelError
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers.files import Files
from tests.support.tiny_dual_encoders import picture
from tests.support.tiny_molmo2 import SETTINGS

FAMILY = FAMILIES["Molmo2ForConditionalGeneration"]


def made(**settings: Any) -> Any:
    return processor_of(Files({}, SETTINGS | settings), FAMILY.kind)


def by_lines(image: Any, height: int, width: int) -> Any:
    """The image by lines between neighbours, as bytes between -1 and 1, [3, height, width]."""
    values = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float()[None]
    found = F.interpolate(values, (height, width), mode="bilinear")[0].round()
    return found.clamp(0, 255).numpy() / 127.5 - 1


@pytest.mark.row("V59", "F02.08", "F23.03")
def test_crops_overlap_and_marks_stand_around_rows() -> None:
    """A crop has 110 pixels, 30 of which no other shows."""
    for width, height in [(64, 48), (17, 90), (301, 200), (131, 90), (700, 130)]:
        image, processor = picture(width, height), made()
        found = processor(image)
        _, rows, columns = found.grid
        grids = [(a, b) for a in range(1, 5) for b in range(1, 5) if a * b <= 4]
        inner = max(1, height - 80), max(1, width - 80)
        scale = {g: min(30 * g[0] / inner[0], 30 * g[1] / inner[1]) for g in grids}
        large = [share for share in scale.values() if share >= 1]
        assert scale[rows, columns] == (min(large) if large else max(scale.values()))
        plane = by_lines(image, 30 * rows + 80, 30 * columns + 80)
        views = [by_lines(image, 110, 110)]
        views += [
            plane[:, 30 * r : 30 * r + 110, 30 * c : 30 * c + 110]
            for r in range(rows)
            for c in range(columns)
        ]
        assert np.abs(found.pixels - np.stack(views)).max() < 1.01 / 127.5, "one of 255"
        assert (np.abs(found.pixels - np.stack(views)) > 1e-5).mean() < 1e-2
        tall, wide = (math.ceil((3 * count + 8) / 2) for count in (rows, columns))
        assert found.num_tokens == 36 + tall * wide
        for flags, text in (
            ({}, f"<low_res_im_start>{'******<im_col>' * 6}<im_end><im_start>"),
            ({"image_use_col_tokens": False}, f"<low_res_im_start>{'*' * 36}<im_end><im_start>"),
        ):
            files = Files({}, {}, flags)
            pieces = FAMILY.placeholder_of(files)(processor, found.grid, found.num_tokens)
            end = "" if flags else "<im_col>"
            text += f"{('*' * wide + end) * tall}<im_end>"
            assert "".join(p if isinstance(p, str) else "*" * p for p in pieces) == text


def test_other_margins_are_refused() -> None:
    with pytest.raises(ModelError, match="other margins than 4"):
        made(overlap_margins=[2, 2])
