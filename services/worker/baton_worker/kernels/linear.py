"""Matrix times weight: the plain form, and forms with the weight laid out for the CPU once."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.cpu.linear import CpuLinear


class LinearKernel(Protocol):
    """y = x W^T (+ bias) (+ residual) for a weight fixed at construction."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, in_features] to [T, out_features]; `residual` has the shape of the result."""
        ...


class PlainLinear:
    """The twin: `torch.nn.functional.linear`, any device and dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        y = F.linear(x, self._weight, self._bias)
        return y if residual is None else residual + y


class PackedLinear:
    """oneDNN with a prepacked weight, where the C++ kernels cannot be had.

    `F.linear` reorders the weight into oneDNN's blocked layout in every call, which at a few rows
    costs more than the product. Here that happens once. The residual is added inside the product,
    before the result is rounded.
    """

    _DTYPES = (torch.bfloat16, torch.float32)

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        assert self.refuses(weight) is None
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self._bias = bias
        self._linear = torch.ops.mkldnn._linear_pointwise.default
        self._linear_binary = torch.ops.mkldnn._linear_pointwise.binary

    @classmethod
    def refuses(cls, weight: Tensor) -> str | None:
        """Why this weight cannot be packed, as half a sentence; None if it can."""
        if weight.device.type != "cpu":
            return "it is not on the CPU"
        if weight.dtype not in cls._DTYPES:
            return f"oneDNN is not used for {weight.dtype}"
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return "this build of torch has no oneDNN"
        if weight.dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "this CPU has no fast bfloat16"
        return None

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        y: Tensor
        if residual is None:
            y = self._linear(x, self._weight, self._bias, "none", [], "")
        else:
            y = self._linear_binary(x, residual, self._weight, self._bias, "add")
        return y


def fastest(
    weight: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None
) -> LinearKernel:
    """The first that does not refuse; all but `PlainLinear` hold a copy in a layout of their own.

    `out_dtype` is what the caller would like: only `CpuLinear` has float32 sums to give.
    """
    if CpuLinear.refuses(weight) is None:
        return CpuLinear(weight, bias, out_dtype=out_dtype)
    if PackedLinear.refuses(weight) is None:
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)
