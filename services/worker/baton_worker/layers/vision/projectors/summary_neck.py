"""The neck of Nemotron Parse: rows of states become shorter, a summary follows: see
`spec.SummaryNeck`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.sized_steps import Sized

_NORM = spec.Norm(1e-6, "layer", bias=True)


class SummaryNeck(Sized):
    """norm(convolution(norm(W x))) of patches, and norm(W s) of the summary s."""

    def __init__(self, settings: spec.SummaryNeck, context: BuildContext) -> None:
        super().__init__()
        self._settings, width = settings, settings.width
        here = replace(context, name=lambda part: f"{settings.name}.{part}")
        self.narrow = _Convolution("conv1", settings.inputs, width, (1,), here, bias=True)
        self.first_norm = norm(_NORM, width, "layer_norm1", here)
        self.join = _Convolution("conv2", width, width, (1, settings.columns), here)
        self.second_norm = norm(_NORM, width, "layer_norm2", here)
        inputs = settings.inputs * len(settings.summaries)
        self.summarize = Linear(inputs, {"sum_proj": width}, here, bias=True)
        self.third_norm = norm(_NORM, width, "layer_norm3", here)

    def after(self, size: Size) -> Size:
        """One row of all vectors."""
        return 1, size[0] * (size[1] // self._settings.columns) + 1

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, inputs] of parts, their class tokens and registers first, then their patches row by
        row, to [vectors, width]."""
        counts = [self._settings.leading + rows * columns for rows, columns in sizes]
        parts = zip(torch.split(x, counts), sizes, strict=True)
        return torch.cat([vectors for part, size in parts for vectors in self._part(part, size)])

    def _part(self, x: Tensor, size: Size) -> tuple[Tensor, Tensor]:
        leading, columns = self._settings.leading, self._settings.columns
        plane = self.first_norm(self.narrow(x[leading:])).view(*size, -1)
        whole = plane[:, : size[1] // columns * columns]
        cells = torch.unflatten(whole, 1, (-1, columns)).transpose(2, 3).flatten(2).flatten(0, 1)
        summary = x[list(self._settings.summaries)].flatten()[None]
        return self.second_norm(self.join(cells)), self.third_norm(self.summarize(summary))


class _Convolution(Linear):
    """A convolution of disjoint windows of this shape, over channels that hold a window each."""

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        window: tuple[int, ...],
        context: BuildContext,
        *,
        bias: bool = False,
    ) -> None:
        self._shape = (inputs, *window)
        super().__init__(inputs * window[-1], {name: outputs}, context, bias=bias)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The weight in convolution shape, and the bias if there is one."""
        for name, rows in super().weight_targets():
            yield name, rows.view(-1, *self._shape) if rows.ndim == 2 else rows
