"""A vision tower whose embeddings say which image and which row they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from baton.protocol.media import Grid
from baton_worker.models.vision.media_tower import MediaTower

IMAGE_TOKEN, HIDDEN = 99, 4


class FakeTower:
    """Row r of an image of value v is v + r, everywhere."""

    image_token = IMAGE_TOKEN
    bidirectional = False
    width, dtype, progress = HIDDEN, torch.float32, 0
    media_tokens = (IMAGE_TOKEN,)
    tokens_per_second = 0.0
    rope_index, merge, added, cross = "mrope", 2, False, False
    alongside = False

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.batches: list[int] = []
        """Number of images of each call."""

    @property
    def tower(self) -> MediaTower:
        """This, in the place of a real one."""
        return cast(MediaTower, self)

    def tokens_of(self, grid: Grid) -> tuple[int, ...]:
        return self.media_tokens

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        return "" if len(shape) == 3 else f"an image of shape {list(shape)}"

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        return self._rows

    def num_placeholders(self, num_tokens: int) -> int:
        return num_tokens

    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        self.batches.append(len(pixels))
        rows = torch.arange(self._rows, dtype=torch.float32)[:, None]
        return [(image.flatten()[0] + rows).expand(-1, HIDDEN) for image in pixels]


class FakeTokenTower(FakeTower):
    """Row r of an image of value v is the token v + r; -1 if v is not finite."""

    width, dtype = 1, torch.int32

    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        found = super().encode_media(pixels, grids)
        return [rows[:, :1].nan_to_num(-1).to(torch.int32) for rows in found]
