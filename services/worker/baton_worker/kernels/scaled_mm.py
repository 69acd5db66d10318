"""Products of 8-bit floats by the libraries behind `torch.nn.functional.scaled_mm`.

Scales are those that cuBLASLt and CUTLASS have kernels for: one per token and one per row of the
weight (a scale per tensor is that of every row), or 128 channels of a token and 128 by 128 of the
weight (DeepSeek-V3, arXiv:2412.19437). Sums are float32. Other weights are for
`kernels.triton.fp8`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels import fp8
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.linear import LinearSpec, LinearWeight, RowBlockLinear
from baton_worker.kernels.triton import runs

log = logging.getLogger(__name__)
CAPABILITY = (8, 9)
"""The first that has products of 8-bit floats."""
_HOPPER = 9
"""The one whose cuBLASLt scales blocks of 128, and rows for results that are not bfloat16."""
_BLOCK = 128
_ROW_MULTIPLE = 4
"""Rows of inputs with scales by block: columns of their scales begin at multiples of 16 bytes."""
_FITS = 16
"""Rows and columns of a weight are multiples of this."""


class ScaledMmLinear(RowBlockLinear):
    """y = x W^T of quantised inputs and weights, the parts of a fused weight in one product where
    their inputs are rounded alike.

    Args:
        parts: the weights whose rows make up the layer's.
        bias: one value per row of all parts.
        dtype: of inputs and results.
        row_block: rows of every product, padded with zeros; 0: as many as there are.
    """

    applies_gate = False

    def __init__(
        self, parts: Sequence[Fp8Weight], bias: Tensor | None, dtype: torch.dtype, row_block: int
    ) -> None:
        alike = groupby(parts, key=lambda part: (_by_block(part), part.inputs.kind))
        self._products = [_Product(list(run), dtype) for _, run in alike]
        self._bias, self._row_block = bias, row_block
        self.nbytes = sum(product.nbytes for product in self._products)

    @classmethod
    def refuses(cls, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """See `LinearBackend`."""
        if not isinstance(weight, Fp8Weight):
            return "it multiplies with 8-bit floats"
        if like is None or like.device.type != "cuda":
            return "it needs a GPU"
        if (capability := torch.cuda.get_device_capability(like.device)) < CAPABILITY:
            _say_what_is_missing(like.device)
            return "GPUs have products of 8-bit floats from compute capability 8.9 on"
        if why := _refuses_layout(weight, like.dtype, capability):
            return why
        return _trial(like.device, like.dtype, _by_block(weight))

    @classmethod
    def build(cls, spec: LinearSpec) -> ScaledMmLinear:
        """See `LinearBackend`."""
        parts = [part.to(spec.like.device) for part in spec.weights if isinstance(part, Fp8Weight)]
        return cls(parts, spec.bias, spec.like.dtype, spec.row_block)

    def _rows(self, x: Tensor) -> Tensor:
        parts = [product(x) for product in self._products]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class _Product:
    """One product with the rows of weights whose inputs are rounded alike."""

    def __init__(self, parts: Sequence[Fp8Weight], dtype: torch.dtype) -> None:
        self._inputs, self._dtype = parts[0].inputs, dtype
        self._by_block = _by_block(parts[0])
        codes = torch.cat([part.codes.view(torch.uint8) for part in parts])
        self._codes = codes.view(torch.float8_e4m3fn)
        scales = torch.cat([_scales(part) for part in parts])
        self._scales = _laid_out(scales) if self._by_block else scales.T
        self.nbytes = self._codes.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] to [T, N]."""
        if not len(x):
            return x.new_empty(0, len(self._codes))
        multiple = _ROW_MULTIPLE if self._by_block else 1
        codes, scales = _quantised(x, self._inputs, multiple)
        if self._by_block:
            return _by_blocks(codes, self._codes, scales, self._scales, self._dtype)[: len(x)]
        return _by_rows(codes, self._codes, scales, self._scales, self._dtype)


def _by_rows(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, to: torch.dtype) -> Tensor:
    """a [T, K] and b [N, K] with float32 scales [T, 1] and [1, N]."""
    # Columns of one number have a stride too, and torch looks at it.
    result: Tensor = torch._scaled_mm(a, b.T, a_scales.flatten()[:, None], b_scales, out_dtype=to)
    return result


def _by_blocks(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, to: torch.dtype) -> Tensor:
    """a [T, K] and b [N, K] with float32 scales [T, K / 128], column by column, and `_laid_out`
    ones."""
    kinds: Any = F.ScalingType
    result: Tensor = F.scaled_mm(
        *(a, b.T, a_scales, kinds.BlockWise1x128, b_scales, kinds.BlockWise128x128),
        output_dtype=to,
    )
    return result


def _scales(part: Fp8Weight) -> Tensor:
    """float32 [N, 1], or [N / 128, K / 128] by block."""
    if _by_block(part):
        return part.scales.float()
    return part.scales.float().repeat_interleave(part.block[0], 0)[: part.shape[0], :1]


def _laid_out(scales: Tensor) -> Tensor:
    """[N / 128, K / 128] to [L, N / 128] that is contiguous along the first axis; L is K / 128 up
    to a multiple of 4, so that each column begins at a multiple of 16 bytes."""
    return F.pad(scales, (0, -scales.shape[1] % _ROW_MULTIPLE)).contiguous().T


def _quantised(x: Tensor, inputs: Inputs, multiple: int) -> tuple[Tensor, Tensor]:
    """See `fp8.Inputs.in_columns`; one launch where Triton runs."""
    if not runs(x.device):
        return inputs.in_columns(x, multiple)
    from baton_worker.kernels.triton.fp8 import quantise

    return quantise(x, inputs, multiple)


def _by_block(weight: Fp8Weight) -> bool:
    return weight.block[1] < weight.shape[1] or weight.inputs.group is not None


def _refuses_layout(
    weight: Fp8Weight, dtype: torch.dtype, capability: tuple[int, int]
) -> str | None:
    rows, depth = weight.shape
    if rows % _FITS or depth % _FITS:
        return f"its rows or columns are no multiples of {_FITS}"
    if not _by_block(weight):
        narrow = capability[0] != _HOPPER and dtype is not torch.bfloat16
        return f"it has no results of {dtype} on this GPU" if narrow else None
    if weight.block != (_BLOCK, _BLOCK) or weight.inputs.group != _BLOCK:
        return f"its blocks are not {_BLOCK} channels of a token and {_BLOCK} by {_BLOCK} weights"
    if rows % _BLOCK or depth % _BLOCK:
        return f"its blocks of {_BLOCK} are not whole"
    if capability[0] != _HOPPER:
        return "cuBLASLt scales blocks of 128 on compute capability 9 only"
    return None if hasattr(F, "scaled_mm") else "this PyTorch has no scaled_mm with scales by block"


@functools.cache
def _say_what_is_missing(device: torch.device) -> None:
    log.warning("%s has no products of 8-bit floats: they are multiplied as 16-bit ones", device)


@functools.cache
def _trial(device: torch.device, dtype: torch.dtype, by_block: bool) -> str | None:
    """Why a small product fails, or what it gives is wrong, as half a sentence; run once at start,
    since what a library takes depends on its version, the driver and the GPU."""
    inputs = Inputs(_BLOCK if by_block else None)
    codes = torch.randn(2 * _BLOCK, 3 * _BLOCK, device=device).to(torch.float8_e4m3fn)
    block = (_BLOCK, _BLOCK) if by_block else (1, codes.shape[1])
    counts = [-(-size // width) for size, width in zip(codes.shape, block, strict=True)]
    weight = Fp8Weight(codes, torch.rand(*counts, device=device) + 0.5, block, inputs)
    x = torch.randn(5, codes.shape[1], device=device).to(dtype)
    try:
        result = ScaledMmLinear([weight], None, dtype, 0)(x).double()
        expected = fp8.product(x, weight).double()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        why = f"a trial product failed ({str(error).strip().splitlines()[0]})"
    else:
        if float((result - expected).norm() / expected.norm()) < 0.02:
            return None
        why = "a trial product is wrong"
    log.warning("8-bit floats are multiplied by Triton: %s in torch's scaled_mm", why)
    return why
