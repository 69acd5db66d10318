"""Products of 8-bit integers (w8a8): inputs are rounded by the checkpoint's config.

    y[t, n] = x_scale[t] * w_scale[n] * sum over k of x_code[t, k] * w_code[n, k]

The sum is one of whole numbers. The CPU's product of blocks makes it, with scales of 1: codes are
exact in bfloat16, and every partial sum is exact in float32 below 2^24, which 1040 products of the
largest codes do not reach, and those of longer rows only where nearly all codes are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.linear import (
    LinearKernel,
    LinearSpec,
    LinearWeight,
    WithoutFactors,
    choose,
    has_kernel,
)
from baton_worker.kernels.quantized_weights import BlockQuantized, UnreadWeight

_KIND, _ZERO, _MOST = "int8", 128, 127
_LEAST = torch.finfo(torch.float32).tiny
"""The least scale: a token of zeros has a scale too."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight [N, K] of signed bytes with a scale per row, and how inputs are rounded."""

    stored: GptqWeight
    """The weight for products with float inputs."""
    input_scale: float | None = None
    """The scale of every input; None is that of each token's largest value."""

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.stored.shape

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.stored.nbytes

    @property
    def column_multiple(self) -> int:
        """See `QuantizedWeight`."""
        return KINDS[_KIND].group

    def __getitem__(self, rows: slice | Tensor) -> Int8Weight:
        """Some rows."""
        return replace(self, stored=self.stored[rows])

    def columns(self, first: int, count: int) -> Int8Weight:
        """See `QuantizedWeight`."""
        return replace(self, stored=self.stored.columns(first, count))

    def padded(self, rows: int) -> Int8Weight:
        """See `QuantizedWeight`."""
        return replace(self, stored=self.stored.padded(rows))

    def to(self, device: torch.device) -> Int8Weight:
        """Copy to another device."""
        return replace(self, stored=self.stored.to(device))

    def dequantise(self) -> Tensor:
        """float32 [N, K]."""
        return self.stored.dequantise()

    def blocks(self) -> None:
        """None: a product of blocks has float inputs."""

    def codes(self, rows: slice) -> BlockQuantized:
        """Some rows of the codes, as blocks with scales of 1."""
        codes = (self.stored[rows].codes().to(torch.int16) - _ZERO).to(torch.int8)
        ones = torch.ones(len(codes), codes.shape[1] // KINDS[_KIND].group, dtype=torch.float16)
        return BlockQuantized(_KIND, codes, ones)


def quantise(x: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """[T, K] to whole numbers of -128 to 127 in the dtype of x, and scales float32 [T, 1]."""
    wide = x.float()
    if scale is None:
        scales = (wide.abs().amax(-1, keepdim=True) / _MOST).clamp_(min=_LEAST)
    else:
        scales = wide.new_full((len(x), 1), scale)
    return (wide / scales).round_().clamp_(-_MOST - 1, _MOST).to(x.dtype), scales


class Int8Linear(WithoutFactors):
    """Rounds inputs and multiplies integers; parts with scales of inputs of their own are products
    of their own.

    Args:
        spec: its weights are `Int8Weight`; the gate is left to the caller.
    """

    applies_gate = False

    def __init__(self, spec: LinearSpec) -> None:
        parts = [part for part in spec.weights if isinstance(part, Int8Weight)]
        runs = [list(run) for _, run in groupby(parts, lambda part: part.input_scale)]
        self._products = [_Product(run, spec.like) for run in runs]
        self._bias = spec.bias
        self._out_dtype = spec.out_dtype or spec.like.dtype
        self.nbytes = sum(product.nbytes for product in self._products)

    @classmethod
    def refuses(cls, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """See `LinearBackend`."""
        if not isinstance(weight, Int8Weight):
            return "it multiplies 8-bit integers with rounded inputs"
        if like is None or not has_kernel(_unscaled(weight), like):
            return "no kernel multiplies with its codes"
        return None

    @classmethod
    def build(cls, spec: LinearSpec) -> Int8Linear:
        """See `LinearBackend`."""
        return cls(spec)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        flat = x.reshape(-1, x.shape[-1])
        y = self.sums(flat)
        y = y if self._bias is None else y + self._bias
        y = y.view(*x.shape[:-1], y.shape[-1])
        return (y if residual is None else y + residual).to(self._out_dtype)

    def sums(self, x: Tensor) -> Tensor:
        """See `LinearKernel`."""
        return torch.cat([product(x) for product in self._products], -1)


class _Product:
    """Parts that share the scale of inputs."""

    def __init__(self, parts: Sequence[Int8Weight], like: Tensor) -> None:
        weights = [_unscaled(part) for part in parts]
        spec = LinearSpec(weights, None, like, out_dtype=torch.float32)
        self._sums: LinearKernel = choose(spec)
        self._scales = torch.cat([part.stored.scales[0] for part in parts]).float()
        self._input_scale = parts[0].input_scale
        self.nbytes = self._sums.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] to float32 [T, N]."""
        codes, scales = quantise(x, self._input_scale)
        return self._sums(codes).mul_(scales).mul_(self._scales)


def _unscaled(weight: Int8Weight) -> BlockQuantized:
    return UnreadWeight(_KIND, weight.shape, weight.codes)
