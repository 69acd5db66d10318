"""Steps of a projector that must know how the states of each part of an image lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.vision.convolution import Convolution2d
from baton_worker.layers.vision.grid import Size


class Sized(nn.Module):
    """A step that takes states row by row, part after part, and the rows and columns of each."""

    def after(self, size: Size) -> Size:
        """Rows and columns of what comes out of a part."""
        raise NotImplementedError

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, C] of parts of these sizes to their next states."""
        raise NotImplementedError


class PartByPart(Sized):
    """Runs parts one by one, so that the numbers of one do not depend on others."""

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """See `Sized`."""
        parts = torch.split(x, [rows * columns for rows, columns in sizes])
        return torch.cat([self.part(part, size) for part, size in zip(parts, sizes, strict=True)])

    def part(self, x: Tensor, size: Size) -> Tensor:
        """[rows * columns, C] of one part to its next states."""
        raise NotImplementedError


class Unfold(PartByPart):
    """See `spec.Unfold`."""

    def __init__(self, settings: spec.Unfold, context: BuildContext) -> None:
        super().__init__()
        self._size, self._by_patch = settings.size, settings.how == "concat"

    def after(self, size: Size) -> Size:
        """Whole windows, begun ones included."""
        return -(-size[0] // self._size), -(-size[1] // self._size)

    def part(self, x: Tensor, size: Size) -> Tensor:
        """To [windows, C * size^2]."""
        below, right = (-side % self._size for side in size)
        plane = F.pad(x.view(*size, -1).permute(2, 0, 1), (0, right, 0, below))
        windows = F.unfold(plane[None], self._size, stride=self._size)[0].T
        if not self._by_patch:
            return windows
        return torch.unflatten(windows, 1, (x.shape[1], -1)).transpose(1, 2).flatten(1)


class StridedConvolution(PartByPart):
    """See `spec.StridedConvolution`."""

    def __init__(self, settings: spec.StridedConvolution, context: BuildContext) -> None:
        super().__init__()
        self._settings = settings
        self.convolution = Convolution2d(
            settings.name,
            settings.inputs,
            settings.outputs,
            replace(context, name=str),
            size=settings.size,
            stride=settings.stride,
            padding=settings.padding,
        )

    def after(self, size: Size) -> Size:
        """Whole windows."""
        settings = self._settings
        rows, columns = (
            (n + 2 * settings.padding - settings.size) // settings.stride + 1 for n in size
        )
        return rows, columns

    def part(self, x: Tensor, size: Size) -> Tensor:
        """To [windows, outputs]."""
        convolved: Tensor = self.convolution(x.view(1, *size, -1).permute(0, 3, 1, 2))
        return convolved[0].flatten(1).T


class RowEnds(Sized):
    """See `spec.RowEnds`."""

    def __init__(self, settings: spec.RowEnds, context: BuildContext) -> None:
        super().__init__()
        self.end = Learned((settings.width,), settings.name, replace(context, name=str))

    def after(self, size: Size) -> Size:
        """One more column."""
        return size[0], size[1] + 1

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, width] to [T + all rows, width]."""
        end, parts = self.end().to(x.dtype), torch.split(x, [r * c for r, c in sizes])
        planes = [part.view(*size, -1) for part, size in zip(parts, sizes, strict=True)]
        ended = [torch.cat((p, end.expand(len(p), 1, -1)), dim=1).flatten(0, 1) for p in planes]
        return torch.cat(ended)


class Bracket(Sized):
    """See `spec.Bracket`."""

    def __init__(self, settings: spec.Bracket, context: BuildContext) -> None:
        super().__init__()
        here, shape = replace(context, name=str), (settings.width,)
        self.begin = Learned(shape, settings.begin, here)
        self.end = Learned(shape, settings.end, here)

    def after(self, size: Size) -> Size:
        """One row of all vectors."""
        return 1, size[0] * size[1] + 2

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, width] to [T + 2 * parts, width]."""
        begin, end = (vector()[None].to(x.dtype) for vector in (self.begin, self.end))
        parts = torch.split(x, [rows * columns for rows, columns in sizes])
        return torch.cat([vector for part in parts for vector in (begin, part, end)])
