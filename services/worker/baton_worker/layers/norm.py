"""Norms over the last axis."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.norm import CpuNorm, TritonNorm
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer


class _Norm(Layer):
    """Base of both norms: an optional scale and bias of any shape that ends in the normed axis. A
    name with `{head}` is one tensor per row of the scale, numbered from `first`."""

    centered: bool

    def __init__(
        self,
        settings: spec.Norm,
        shape: int | tuple[int, ...],
        role: str,
        context: BuildContext,
        first: int = 0,
    ) -> None:
        super().__init__()
        self._name, self._first = context.name(role), first
        full = (shape,) if isinstance(shape, int) else shape
        self._shape = full[-1:]
        self.eps, self._offset = settings.eps, settings.offset
        self.weight = context.empty(*full) if settings.scaled else None
        self.bias = context.empty(*full) if settings.bias else None
        self._placement = context.dtype, context.device
        self._kernel: CpuNorm | TritonNorm | None = None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The scale, and the bias if there is one."""
        for suffix, parameter in (("weight", self.weight), ("bias", self.bias)):
            if parameter is not None and "{head}" in self._name:
                for head, row in enumerate(parameter, start=self._first):
                    yield f"{self._name.format(head=head)}.{suffix}", row
            elif parameter is not None:
                yield f"{self._name}.{suffix}", parameter

    def process_weights_after_loading(self) -> None:
        """Add the offset to the weight in float32, since 1 + w loses the low bits of a small w. Use
        the device's kernel if it has one."""
        if self._offset and self.weight is not None:
            scale = self.weight.to(torch.float32) + self._offset
            self.weight = nn.Parameter(scale, requires_grad=False)
        dtype, device = self._placement
        if CpuNorm.refuses(self.weight, dtype, device) is None:
            self._kernel = CpuNorm(
                *(self.weight, self.bias),
                size=self._shape[0],
                eps=self.eps,
                dtype=dtype,
                centered=self.centered,
            )
        elif TritonNorm.refuses(self.weight, device) is None:
            self._kernel = TritonNorm(self.weight, self.bias, eps=self.eps, centered=self.centered)

    @property
    def adds(self) -> bool:
        """Whether a sum is made and normed in one launch, by `of_sum`."""
        return isinstance(self._kernel, TritonNorm)

    def of_sum(self, x: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of x + more, and that sum: [..., size] each."""
        assert isinstance(self._kernel, TritonNorm), "adds was not asked"
        return self._kernel.of_sum(x, more)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """The norm of x, plus a residual: [..., size] each."""
        if isinstance(self._kernel, CpuNorm):
            return self._kernel(x, residual)
        out: Tensor = residual + self(x)
        return out


class RmsNorm(_Norm):
    """x / rms(x) * weight (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    centered = False

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape and dtype; the mean square is taken in float32."""
        if self._kernel is not None:
            return self._kernel(x)
        weight = self.weight
        if weight is None or (weight.ndim == 1 and weight.dtype is x.dtype):
            return F.rms_norm(x, self._shape, weight, self.eps)
        return (F.rms_norm(x.float(), self._shape, None, self.eps) * weight).to(x.dtype)


class ConditionedNorm(RmsNorm):
    """See `spec.TimeCondition`. The factor is one for all tokens, so the scale has it once the
    weights are loaded."""

    def __init__(
        self,
        settings: spec.Norm,
        size: int,
        role: str,
        condition: spec.TimeCondition,
        context: BuildContext,
    ) -> None:
        super().__init__(settings, size, role, context)
        self._condition = condition
        self._roles = context.name("condition_down"), context.name("condition_up")
        self.down, self.up = (
            context.empty(condition.rank, size),
            context.empty(size, condition.rank),
        )

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The scale, and what makes its factor."""
        yield from super().weight_targets()
        for name, parameter in zip(self._roles, (self.down, self.up), strict=True):
            yield f"{name}.weight", parameter

    def process_weights_after_loading(self) -> None:
        """Multiply the scale by the factor, in float32."""
        assert self.weight is not None, "a scale is conditioned"
        down, up = self.down.float(), self.up.float()
        factor = 1.0 + up @ F.gelu(down @ _waves(self._condition, down))
        self.weight = nn.Parameter(self.weight.float() * factor, requires_grad=False)
        super().process_weights_after_loading()


def _waves(condition: spec.TimeCondition, like: Tensor) -> Tensor:
    """The embedding of a time, as wide as a row of `like`."""
    half = like.shape[1] // 2
    steps = torch.arange(half, dtype=torch.float32, device=like.device) / half
    phases = condition.time * torch.exp(-math.log(condition.base) * steps)
    return torch.cat((phases.cos(), phases.sin()))


class LayerNorm(_Norm):
    """(x - mean(x)) / std(x) * weight + bias (Ba et al. 2016, arXiv:1607.06450)."""

    centered = True

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape and dtype; mean and variance are taken in float32."""
        if self._kernel is not None:
            return self._kernel(x)
        weight, bias = self.weight, self.bias
        if weight is None or (weight.ndim == 1 and weight.dtype is x.dtype):
            return F.layer_norm(x, self._shape, weight, bias, self.eps)
        scaled = F.layer_norm(x.float(), self._shape, None, None, self.eps) * weight
        return (scaled if bias is None else scaled + bias).to(x.dtype)


NORMS: dict[str, type[RmsNorm | LayerNorm]] = {"rms": RmsNorm, "layer": LayerNorm}


def norm(
    settings: spec.Norm,
    shape: int | tuple[int, ...],
    role: str,
    context: BuildContext,
    first: int = 0,
) -> RmsNorm | LayerNorm:
    """Build the layer of a `spec.Norm`; the weight has `shape`, and its last axis is normed."""
    return NORMS[settings.kind](settings, shape, role, context, first)
