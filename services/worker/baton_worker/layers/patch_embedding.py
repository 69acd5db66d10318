"""Patch embedding of images: see `spec.Patches`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned, Table
from baton_worker.layers.linear import Linear

CHANNELS = 3


class Patches(nn.Module):
    """Projected patches with a leading class token and added position embeddings."""

    def __init__(self, settings: spec.Patches, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self.settings = settings
        self.project = PatchProjection(settings, hidden, context)
        self.class_token = None
        if settings.class_token:
            self.class_token = Learned((hidden,), "class_token", context)
        self.positions = Table(settings.count, hidden, "positions", context)

    def forward(self, pixels: Tensor) -> Tensor:
        """[R, 3, image, image] to [R * count, hidden], image by image."""
        x: Tensor = self.project(squares(pixels, self.settings.size))
        x = x.view(pixels.shape[0], -1, x.shape[1])
        if self.class_token is not None:
            first = self.class_token().expand(x.shape[0], 1, -1)
            x = torch.cat((first, x), dim=1)
        numbers = torch.arange(x.shape[1], device=x.device)
        placed: Tensor = x + self.positions(numbers)
        return placed.flatten(0, 1)


def squares(pixels: Tensor, size: int) -> Tensor:
    """[R, C, H, W] to [R * (H // size) * (W // size), C * size * size], patches in row-major
    order."""
    rows, columns = pixels.shape[2] // size, pixels.shape[3] // size
    whole = pixels[:, :, : rows * size, : columns * size]
    cut = whole.reshape(*whole.shape[:2], rows, size, columns, size)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(0, 2)


class PatchProjection(Linear):
    """A convolution with disjoint windows, run as a matrix product; the checkpoint's shape is
    [hidden, C, size, size]."""

    def __init__(self, settings: spec.Patches, hidden: int, context: BuildContext) -> None:
        pixels = CHANNELS * settings.size**2
        super().__init__(pixels, {"patches": hidden}, context, bias=settings.bias)
        self._window = (CHANNELS, settings.size, settings.size)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The weight in convolution shape, and the bias if there is one."""
        for name, rows in super().weight_targets():
            yield name, rows.view(-1, *self._window) if rows.ndim == 2 else rows
