"""Products with weights that were rotated before they were quantised.

    y = x W^T = (x M) Q^T * factor                Q = (W M) / factor, as quantised

M is block-diagonal: one orthogonal matrix for each run of inputs, such as a Hadamard matrix, which
spreads outliers. Inputs are rotated, so the weight stays packed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.linear import LinearKernel, LinearSpec, LinearWeight, choose, has_kernel
from baton_worker.kernels.weight import QuantizedWeight


def rotate(rows: Tensor, matrix: Tensor) -> Tensor:
    """[N, K] with each run of as many columns as `matrix` has rows multiplied by it."""
    return (torch.unflatten(rows, -1, (-1, len(matrix))) @ matrix).flatten(-2)


@dataclass(frozen=True, slots=True)
class RotatedWeight:
    """A weight [N, K]."""

    inner: QuantizedWeight
    """Q [N, K]."""
    matrix: Tensor
    """float32 [g, g]: M of each run of g inputs, orthogonal."""
    factor: float = 1.0

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.inner.shape

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.inner.nbytes + self.matrix.nbytes

    @property
    def column_multiple(self) -> int:
        """See `QuantizedWeight`: a shard has whole runs."""
        return math.lcm(self.inner.column_multiple, len(self.matrix))

    def __getitem__(self, rows: slice | Tensor) -> RotatedWeight:
        """Some rows."""
        return replace(self, inner=self.inner[rows])

    def columns(self, first: int, count: int) -> RotatedWeight:
        """See `QuantizedWeight`."""
        return replace(self, inner=self.inner.columns(first, count))

    def padded(self, rows: int) -> RotatedWeight:
        """See `QuantizedWeight`."""
        return replace(self, inner=self.inner.padded(rows))

    def to(self, device: torch.device) -> RotatedWeight:
        """On another device."""
        return replace(self, inner=self.inner.to(device), matrix=self.matrix.to(device))

    def dequantise(self) -> Tensor:
        """float32 [N, K]."""
        return rotate(self.inner.dequantise() * self.factor, self.matrix.T)

    def blocks(self) -> None:
        """None: blocks have no rotation. Those of `inner` are what `RotatedLinear` multiplies."""


class RotatedLinear:
    """Rotates inputs and leaves the product to the kernel of what was rotated. The rotation is a
    product by a kernel too, so a row's bits do not depend on its neighbours.

    Args:
        spec: its weights share one rotation.

    Raises:
        ModelError: they do not.
    """

    def __init__(self, spec: LinearSpec) -> None:
        parts = [part for part in spec.weights if isinstance(part, RotatedWeight)]
        first = parts[0]
        for part in parts:
            if part.factor != first.factor or not torch.equal(part.matrix, first.matrix):
                raise ModelError(
                    "The parts of one projection are rotated by different matrices, and they share "
                    "their inputs. Use a checkpoint with one rotation for all modules."
                )
        self._factor, self._size = first.factor, len(first.matrix)
        turned = first.matrix.T.to(spec.like).contiguous()
        self._rotate = choose(LinearSpec([turned], None, spec.like, row_block=spec.row_block))
        inner = [_packed(part, spec.like) for part in parts]
        self._inner: LinearKernel = choose(replace(spec, weights=inner))
        self.nbytes = self._inner.nbytes + (self._rotate.nbytes or turned.nbytes)
        self.applies_gate = self._inner.applies_gate

    @classmethod
    def refuses(cls, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """See `LinearBackend`."""
        if not isinstance(weight, RotatedWeight):
            return "it multiplies with rotated weights"
        if like is None or not has_kernel(_packed(weight, like), like):
            return "no kernel multiplies with what was rotated"
        return None

    @classmethod
    def build(cls, spec: LinearSpec) -> RotatedLinear:
        """See `LinearBackend`."""
        return cls(spec)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        return self._inner(self._turned(x), residual)

    def sums(self, x: Tensor) -> Tensor:
        """See `LinearKernel`."""
        return self._inner.sums(self._turned(x))

    def put_factors(self, slot: int, factors: Tensor | None) -> bool:
        """See `LinearKernel`."""
        return self._inner.put_factors(slot, factors)

    def _turned(self, x: Tensor) -> Tensor:
        turned = self._rotate(x.reshape(-1, self._size)).view(x.shape)
        return turned if self._factor == 1.0 else turned * self._factor


def _packed(weight: RotatedWeight, like: Tensor) -> QuantizedWeight:
    """The rotated weight, in the form that kernels on this device run."""
    return (weight.inner.blocks() if like.device.type == "cpu" else None) or weight.inner
