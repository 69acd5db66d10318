"""A feed-forward whose activation is learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.cpu.activation import xielu
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import in_lanes
from baton_worker.layers.layer import Bare, Layer
from baton_worker.layers.linear import Linear

PARAMETERS: dict[str, tuple[int, ...]] = {
    "xielu_positive": (1,),
    "xielu_negative": (1,),
    "xielu_slope": (),
    "xielu_floor": (),
}
"""The roles of the parameters and their shapes: the curvatures on both sides of 0 before their
softplus, the slope at 0, and the largest input of the exponential, near 0."""
_expm1 = in_lanes(torch.expm1)


class Xielu(Layer):
    """With slope b: b x + p x^2 above 0, b x + n (exp(x) - 1 - x) below, where p is the softplus of
    its parameter, and n b more than that of its own (xIELU, arXiv:2411.13010).

    Args:
        values: of `PARAMETERS`; None: they are loaded.
    """

    def __init__(self, values: tuple[float, ...] | None, context: BuildContext) -> None:
        super().__init__()
        # Always float32: they are sums with others, and few.
        wide = replace(context, dtype=torch.float32)
        self._names = [context.name(role) for role in PARAMETERS]
        self._loaded = values is None
        for (role, shape), value in zip(PARAMETERS.items(), values or (0.0,) * 4, strict=True):
            self.register_parameter(role, parameter := wide.empty(*shape))
            parameter.data.fill_(value)

    @property
    def values(self) -> list[Tensor]:
        """`PARAMETERS`, float32."""
        return [getattr(self, role) for role in PARAMETERS]

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters, unless they are those of the spec."""
        if self._loaded:
            yield from zip(self._names, self.values, strict=True)

    def forward(self, x: Tensor) -> Tensor:
        """Each value by itself, rounded once."""
        y = xielu(x, self.values)
        return self._twin(x) if y is None else y

    def _twin(self, x: Tensor) -> Tensor:
        positive, negative, slope, floor = self.values
        wide = x.float()
        above = F.softplus(positive) * wide * wide
        below = (_expm1(torch.minimum(wide, floor)) - wide) * (slope + F.softplus(negative))
        return (torch.where(wide > 0, above, below) + slope * wide).to(x.dtype)


class XieluMlp(Bare):
    """down(xielu(up(x)))."""

    def __init__(self, settings: spec.XieluMlp, hidden: int, context: BuildContext) -> None:
        super().__init__()
        size, bias = settings.intermediate, settings.bias
        self.up = Linear(hidden, {"up": size}, context, bias=bias)
        self.activation = Xielu(settings.parameters, context)
        self.down = Linear(size, {"down": hidden}, context, bias=bias)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`."""
        out: Tensor = self.down(self.activation(self.up(x)), residual)
        return out
