"""Matrix times weight: the plain form, forms with the weight laid out for the CPU once, and one
that reads a quantised weight as it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.fp8 import Fp8Weight
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.nvfp4 import Nvfp4Weight
from baton_worker.kernels.quantized_weights import BlockQuantized
from baton_worker.kernels.triton import runs

Stored: TypeAlias = BlockQuantized | GptqWeight | Fp8Weight | Nvfp4Weight
"""A quantised weight [N, K] as a checkpoint has it."""


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


class StoredLinear:
    """Products on a GPU with quantised weights in the layout of their checkpoint, side by side.

    Args:
        parts: the weights whose rows make up the layer's, each with scales of its own.
        bias: one value per row of all.
        device: where the product is.
    """

    def __init__(
        self, parts: Sequence[GptqWeight | Fp8Weight], bias: Tensor | None, device: torch.device
    ) -> None:
        from baton_worker.kernels.triton import fp8, gptq

        self._gptq, self._fp8 = gptq.product, fp8.product
        self._parts = [part.to(device) for part in parts]
        self._bias = bias
        self.nbytes = sum(part.nbytes for part in self._parts)

    @classmethod
    def refuses(cls, weight: Stored, like: Tensor) -> str | None:
        """Why this weight cannot be multiplied with inputs that are `like` a tensor, as half a
        sentence; None if it can."""
        if not runs(like.device):
            return "it needs a GPU"
        if isinstance(weight, GptqWeight):
            return None
        if not isinstance(weight, Fp8Weight):
            return "there is no kernel for it"
        from baton_worker.kernels.triton import fp8

        return fp8.refuses(weight, like.device)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        flat = x.reshape(-1, x.shape[-1])
        parts = [
            self._gptq(flat, part) if isinstance(part, GptqWeight) else self._fp8(flat, part)
            for part in self._parts
        ]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        y = y.view(*x.shape[:-1], y.shape[-1])
        y = y if self._bias is None else y + self._bias
        return y if residual is None else residual + y


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
