"""Parts of an image in the middle of squares, by the published rules of Ovis 2."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from baton.errors import ModelError
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers.files import Files
from tests.support.tiny_dual_encoders import picture

SIZES = [(64, 48), (17, 90), (301, 200), (31, 29), (700, 130), (56, 28)]
"""Widths and heights."""


def covered(width: int, height: int, columns: int, rows: int, side: int) -> float:
    """The share of an image's pixels that its parts keep when each must fit in a tile."""
    kept = 0.0
    for row in range(rows):
        for column in range(columns):
            w = width // columns if column < columns - 1 else width - width // columns * column
            h = height // rows if row < rows - 1 else height - height // rows * row
            scale = min(1.0, side / max(w, h))
            kept += w * h * scale * scale
    return kept / (width * height)


def test_ovis_puts_parts_of_an_image_in_the_middle_of_squares() -> None:
    """The fewest of up to nine parts that keep nine tenths of the pixels, the whole image first;
    around a part there is zero, behind the colors."""
    encoder = {"image_size": 28, "patch_size": 7}
    config = {"visual_tokenizer_config": {"backbone_config": encoder, "hidden_stride": 2}}
    family = FAMILIES["Ovis"]
    colors = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    settings = colors | {"size": {"shortest_edge": 28}}
    made = processor_of(Files(config, settings), family.kind, whatever=True)
    every = [(rows, columns) for rows in range(1, 10) for columns in range(1, 10)]
    for width, height in SIZES:
        shares = {
            (rows, columns): covered(width, height, columns, rows, 28)
            for rows, columns in every
            if rows * columns <= 9
        }
        good = [grid for grid, share in shares.items() if share > 0.9]
        rows, columns = (
            min(good, key=lambda grid: (math.prod(grid), -shares[grid]))
            if good
            else min(shares, key=lambda grid: (-shares[grid], math.prod(grid)))
        )
        image, boxes = picture(width, height), [(0, 0, width, height)]
        for row in range(rows):
            for column in range(columns):
                left, top = column * (width // columns), row * (height // rows)
                right = width if column == columns - 1 else left + width // columns
                bottom = height if row == rows - 1 else top + height // rows
                boxes.append((left, top, right, bottom))
        found = made(image)
        assert found.grid == (1, rows, columns), (width, height)
        boxes = boxes[1:] if len(boxes) == 2 else boxes
        assert found.num_tokens == 4 * len(boxes)
        for box, tile in zip(boxes, found.pixels, strict=True):
            part = image.crop(box)
            wide, tall = 28, max(1, int(part.height / part.width * 28))
            if part.height > part.width:
                wide, tall = max(1, int(part.width / part.height * 28)), 28
            expected = np.zeros((3, 28, 28))
            left, top = (28 - wide) // 2, (28 - tall) // 2
            small = np.asarray(part.resize((wide, tall), Image.Resampling.BICUBIC))
            shown = (small.transpose(2, 0, 1) / 255 - 0.5) / 0.25
            expected[:, top : top + tall, left : left + wide] = shown
            assert np.abs(tile - expected).max() < 1e-5, (width, height, box)
        [count] = family.placeholder(made, found.grid, found.num_tokens)
        tiles = rows * columns if rows * columns > 1 else 0
        assert count == found.num_tokens + 3 + max(0, tiles - 1)
    with pytest.raises(ModelError, match="tiles of 30 pixels"):
        processor_of(Files(config, {"size": {"height": 30, "width": 30}}), family.kind)
