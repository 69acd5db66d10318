"""Steps from the states of patches to embeddings: see `spec.Step`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.audio.frame_steps import FramePool, FrameStack, PadCode
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned, Table
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import Glu, activation
from baton_worker.layers.norm import norm
from baton_worker.layers.pooler_head import Dense
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.projectors.abstractor import Abstractor
from baton_worker.layers.vision.projectors.learned_queries import LearnedQueries
from baton_worker.layers.vision.projectors.qformer import QFormer
from baton_worker.layers.vision.projectors.resampler import Resampler
from baton_worker.layers.vision.projectors.summary_neck import SummaryNeck
from baton_worker.layers.vision.sized_steps import (
    Bracket,
    RowEnds,
    Sized,
    StridedConvolution,
    Unfold,
)


class Merge(nn.Module):
    """See `spec.Merge`; the patches that are merged follow one another."""

    def __init__(self, settings: spec.Merge, context: BuildContext) -> None:
        super().__init__()
        self._settings = settings

    def forward(self, x: Tensor) -> Tensor:
        """[T, C] to [T / size^2, C * size^2], or C of the mean."""
        cells = x.view(-1, self._settings.size**2, x.shape[-1])
        if self._settings.how == "mean":
            return cells.mean(dim=1)
        return (cells.transpose(1, 2) if self._settings.how == "channels" else cells).flatten(1)


class Convolution(Linear):
    """See `spec.Convolution`; the patches of a window follow one another."""

    def __init__(self, settings: spec.Convolution, context: BuildContext) -> None:
        self._window = (settings.inputs, settings.size, settings.size)
        inputs, here = math.prod(self._window), replace(context, name=str)
        super().__init__(inputs, {settings.name: settings.outputs}, here, bias=True)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The weight in convolution shape, and the bias."""
        for name, rows in super().weight_targets():
            yield name, rows.view(-1, *self._window) if rows.ndim == 2 else rows

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, inputs] to [T / size^2, outputs]."""
        cells = x.view(-1, self._window[1] ** 2, x.shape[-1])
        return super().forward(cells.transpose(1, 2).flatten(1), residual)


class Activated(nn.Module):
    """See `spec.Activated`."""

    def __init__(self, settings: spec.Activated, context: BuildContext) -> None:
        super().__init__()
        self._gated, self._activation = settings.gated, activation(settings.activation)

    def forward(self, x: Tensor) -> Tensor:
        """[T, C] to [T, C], or C / 2 if gated."""
        if not self._gated:
            return self._activation(x)
        left, right = x.chunk(2, dim=-1)
        return self._activation(right) * left


class Standardized(nn.Module):
    """See `spec.Standardized`."""

    def __init__(self, settings: spec.Standardized, context: BuildContext) -> None:
        super().__init__()
        self._factor, here = settings.factor, replace(context, name=str)
        self.bias = Learned((settings.width,), settings.bias, here) if settings.bias else None
        self.scale = Learned((settings.width,), settings.scale, here) if settings.scale else None

    def forward(self, x: Tensor) -> Tensor:
        """[T, width] to the same shape and dtype."""
        wide = x.float() * self._factor
        wide = wide if self.bias is None else wide - self.bias().float()
        return (wide if self.scale is None else wide * self.scale().float()).to(x.dtype)


class Repeated(nn.Module):
    """See `spec.Repeated`."""

    def __init__(self, settings: spec.Repeated, context: BuildContext) -> None:
        super().__init__()
        self._times = settings.times

    def forward(self, x: Tensor) -> Tensor:
        """[T, C] to [T, times * C]."""
        return x.repeat(1, self._times)


class GatedDense(nn.Module):
    """See `spec.GatedDense`."""

    def __init__(self, settings: spec.GatedDense, context: BuildContext) -> None:
        super().__init__()
        names = dict(zip(("gate", "up", "down"), settings.names, strict=True))
        here = replace(context, name=names.__getitem__)
        self.glu = Glu(spec.Glu(settings.intermediate, settings.activation), settings.width, here)

    def forward(self, x: Tensor) -> Tensor:
        """[T, C] to [T, C]."""
        out: Tensor = self.glu(x, None)
        return out


class Codebook(nn.Module):
    """See `spec.Codebook`."""

    def __init__(self, settings: spec.Codebook, context: BuildContext) -> None:
        super().__init__()
        self._used = settings.size - settings.reserved
        self.table = Table(settings.size, settings.width, settings.name, replace(context, name=str))

    @property
    def reserved(self) -> Tensor:
        """The vectors that no state chooses, [reserved, width]."""
        assert self.table.weight is not None
        return self.table.weight[self._used :]

    def forward(self, x: Tensor) -> Tensor:
        """[T, size - reserved] to [T, width]."""
        shares = torch.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)
        assert self.table.weight is not None
        return shares @ self.table.weight[: self._used]


class Summed(Sized):
    """See `spec.Summed`."""

    def __init__(self, settings: spec.Summed, context: BuildContext) -> None:
        super().__init__()
        self.shared = Projector(settings.shared, context)
        self.parts = nn.ModuleList(Projector(steps, context) for steps in settings.parts)

    def after(self, size: Size) -> Size:
        """Rows and columns behind each of the parts, which have the same."""
        first = self.parts[0]
        assert isinstance(first, Projector)
        return first.after(size)

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, parts * C] to [embeddings, hidden]."""
        pairs = zip(x.chunk(len(self.parts), dim=-1), self.parts, strict=True)
        return torch.stack(
            [part(self.shared(features, sizes), sizes) for features, part in pairs]
        ).sum(0)


STEPS: dict[type, Callable[[Any, BuildContext], nn.Module]] = {
    spec.Merge: Merge,
    spec.Convolution: Convolution,
    spec.Normed: lambda s, context: norm(s.norm, s.width, s.name, replace(context, name=str)),
    spec.Activated: Activated,
    spec.Standardized: Standardized,
    spec.Repeated: Repeated,
    spec.Dense: Dense,
    spec.GatedDense: GatedDense,
    spec.Codebook: Codebook,
    spec.Unfold: Unfold,
    spec.StridedConvolution: StridedConvolution,
    spec.Summed: Summed,
    spec.RowEnds: RowEnds,
    spec.Bracket: Bracket,
    spec.Resampler: Resampler,
    spec.QFormer: QFormer,
    spec.LearnedQueries: LearnedQueries,
    spec.Abstractor: Abstractor,
    spec.SummaryNeck: SummaryNeck,
    spec.FrameStack: FrameStack,
    spec.FramePool: FramePool,
    spec.PadCode: PadCode,
}
"""Layer of each step."""


class Projector(nn.Module):
    """Steps one after the other."""

    def __init__(self, steps: Sequence[spec.Step], context: BuildContext) -> None:
        super().__init__()
        self.steps = nn.ModuleList(STEPS[type(step)](step, context) for step in steps)
        self._merges = [
            step.size if isinstance(step, spec.Merge | spec.Convolution) else 1 for step in steps
        ]

    def after(self, size: Size) -> Size:
        """Rows and columns of the embeddings of a part with these of patches."""
        for step, merge in zip(self.steps, self._merges, strict=True):
            size = step.after(size) if isinstance(step, Sized) else _merged(size, merge)
        return size

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, C] of parts with these rows and columns of patches to [embeddings, hidden]."""
        for step, merge in zip(self.steps, self._merges, strict=True):
            if isinstance(step, Sized):
                x = step(x, sizes)
                sizes = [step.after(size) for size in sizes]
            else:
                x = step(x)
                sizes = [_merged(size, merge) for size in sizes]
        return x


def _merged(size: Size, merge: int) -> Size:
    return size[0] // merge, size[1] // merge
