"""Linear layers on a GPU whose weights stay packed, in the layout that Triton's kernel reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton_worker.kernels import packed_weights, unpacked_product
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.linear import LinearSpec, LinearWeight, RowBlockLinear
from baton_worker.kernels.packed_weights import alike, pack
from baton_worker.kernels.scaled_mm import CAPABILITY
from baton_worker.kernels.triton import runs
from baton_worker.kernels.weight import QuantizedWeight

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class PackedLinear(RowBlockLinear):
    """y = x W^T of weights of 4 and 8 bits, parts of one format in one product.

    Args:
        parts: the weights whose rows make up the layer's.
        bias: one value per row of all parts.
        like: a tensor of the device and the dtype of inputs.
        row_block: rows of every product, padded with zeros; 0: as many as there are.
        out_dtype: of results, if not that of inputs.
    """

    applies_gate = False

    def __init__(
        self,
        parts: Sequence[QuantizedWeight],
        bias: Tensor | None,
        like: Tensor,
        row_block: int = 0,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        self._bias, self._row_block = bias, row_block
        self._products = [_Product(run, like, out_dtype or like.dtype) for run in _runs(parts)]
        self.nbytes = sum(product.nbytes for product in self._products)

    @classmethod
    def refuses(cls, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """See `LinearBackend`."""
        if isinstance(weight, Tensor) or not isinstance(weight, packed_weights.PACKABLE):
            return "it multiplies with packed integers and floats of a checkpoint"
        if like is None or not runs(like.device):
            return "it needs a GPU"
        if like.dtype not in _DTYPES:
            return f"it has no product for {like.dtype}"
        if isinstance(weight, Fp8Weight) and has_float8(like.device):
            return "this GPU has products of 8-bit floats"
        return packed_weights.refuses(weight)

    @classmethod
    def build(cls, spec: LinearSpec) -> PackedLinear:
        """See `LinearBackend`."""
        parts = [part for part in spec.weights if isinstance(part, packed_weights.PACKABLE)]
        return cls(parts, spec.bias, spec.like, spec.row_block, spec.out_dtype)

    def _rows(self, x: Tensor) -> Tensor:
        parts = [product(x) for product in self._products]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def has_float8(device: torch.device) -> bool:
    """Whether tensor cores of a device take 8-bit floats."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY


def _runs(parts: Sequence[QuantizedWeight]) -> list[list[QuantizedWeight]]:
    """Neighbours of one format."""
    runs_of_parts = list[list[QuantizedWeight]]()
    for part in parts:
        if runs_of_parts and alike(runs_of_parts[-1][0], part):
            runs_of_parts[-1].append(part)
        else:
            runs_of_parts.append([part])
    return runs_of_parts


class _Product:
    """The product with one packed weight."""

    def __init__(
        self, parts: Sequence[QuantizedWeight], like: Tensor, out_dtype: torch.dtype
    ) -> None:
        self._weights, self._out_dtype = pack(parts, like.device), out_dtype
        self._inputs: Inputs | None = None
        self._unpacked_from = unpacked_product.NEVER
        if isinstance(parts[0], Fp8Weight):
            self._inputs = parts[0].inputs
        else:
            self._unpacked_from = unpacked_product.rows_from(self._weights, like)
        self.nbytes = self._weights.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] to [T, N]."""
        from baton_worker.kernels.triton import grouped  # Needs triton, which may not be installed.

        # A library's product with floats would round its sums to the dtype of inputs.
        if len(x) < self._unpacked_from or self._out_dtype != x.dtype:
            return grouped.product(x, self._weights, inputs=self._inputs, out_dtype=self._out_dtype)
        order = self._weights.order
        x = x if order is None else x.index_select(1, order)
        return unpacked_product.product(x, self._weights)
