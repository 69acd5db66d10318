"""Steps of a projector that must know how the states of each part of an image lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.grid import Size


class Sized(nn.Module):
    """A step that takes states row by row, part after part, and the rows and columns of each."""

    def after(self, size: Size) -> Size:
        """Rows and columns of what comes out of a part."""
        raise NotImplementedError

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, C] of parts of these sizes to their next states."""
        raise NotImplementedError


class Unfold(Sized):
    """See `spec.Unfold`."""

    def __init__(self, settings: spec.Unfold, site: BuildContext) -> None:
        super().__init__()
        self._size = settings.size

    def after(self, size: Size) -> Size:
        """Whole windows, begun ones included."""
        return -(-size[0] // self._size), -(-size[1] // self._size)

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, C] to [windows, C * size^2]."""
        parts = torch.split(x, [rows * columns for rows, columns in sizes])
        return torch.cat([self._part(part, size) for part, size in zip(parts, sizes, strict=True)])

    def _part(self, x: Tensor, size: Size) -> Tensor:
        below, right = (-side % self._size for side in size)
        plane = F.pad(x.view(*size, -1).permute(2, 0, 1), (0, right, 0, below))
        return F.unfold(plane[None], self._size, stride=self._size)[0].T
