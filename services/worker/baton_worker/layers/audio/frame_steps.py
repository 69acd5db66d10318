"""Steps of a projector over states that follow one another in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.linear import Linear
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.sized_steps import Sized


class FrameStack(Sized):
    """See `spec.FrameStack`; a chunk is one row of states."""

    def __init__(self, settings: spec.FrameStack, context: BuildContext) -> None:
        super().__init__()
        self._size, self._padded = settings.size, settings.padded

    def after(self, size: Size) -> Size:
        """One row of stacks."""
        rows, columns = size
        return rows, -(-columns // self._size) if self._padded else columns // self._size

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, C] of chunks to [stacks, C * size]."""
        parts = torch.split(x, [rows * columns for rows, columns in sizes])
        pairs = zip(parts, map(self.after, sizes), strict=True)
        return torch.cat([self._part(part, rows * columns) for part, (rows, columns) in pairs])

    def _part(self, x: Tensor, count: int) -> Tensor:
        missing = count * self._size - len(x)
        whole = F.pad(x, (0, 0, 0, missing)) if missing > 0 else x[: count * self._size]
        return whole.reshape(count, self._size * x.shape[1])


class FramePool(Sized):
    """See `spec.FramePool`; a chunk is one row of states."""

    def __init__(self, settings: spec.FramePool, context: BuildContext) -> None:
        super().__init__()
        self._size, self._padded = settings.size, settings.padded

    def after(self, size: Size) -> Size:
        """One row of means."""
        return size[0], (-(-size[1] // self._size) if self._padded else size[1] // self._size)

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, C] of chunks to [means, C]."""
        parts = torch.split(x, [rows * columns for rows, columns in sizes])
        whole = [self._whole(part) for part in parts]
        return torch.cat(whole).view(-1, self._size, x.shape[1]).mean(dim=1)

    def _whole(self, x: Tensor) -> Tensor:
        if self._padded:
            return F.pad(x, (0, 0, 0, -len(x) % self._size))
        return x[: len(x) // self._size * self._size]


class PadCode(nn.Module):
    """See `spec.PadCode`."""

    def __init__(self, settings: spec.PadCode, context: BuildContext) -> None:
        super().__init__()
        here, width = replace(context, name=str), settings.width
        self._row = settings.row
        self.table = Table(settings.rows, width, settings.table, here)
        self.projection = Linear(width, {settings.projection: width}, here)

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] to the same."""
        code = torch.tensor([self._row], device=x.device)
        shift: Tensor = self.projection(self.table(code))
        return x + shift
