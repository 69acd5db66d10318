"""MXFP4 (OCP Microscaling Formats 1.0): 4-bit floats in blocks of 32 that share a power of two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.block_kinds import E2M1
from baton_worker.kernels.quantized_weights import BlockQuantized, UnreadWeight, nibbles
from baton_worker.kernels.weight import ExpertStack

_BLOCK = 32
_EXPONENT_BIAS = 127


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """uint8 codes [..., n, 16] and uint8 scales [..., n] to float32 [..., n * 32].

    A byte holds two E2M1 values, the first in its low half; a scale is an E8M0 exponent. Every
    value is exact in bfloat16.
    """
    values = torch.tensor(E2M1, device=codes.device)[nibbles(codes).int()]
    return torch.ldexp(values, scales.int()[..., None] - _EXPONENT_BIAS).flatten(-2)


@dataclass(frozen=True, slots=True)
class Mxfp4Weight:
    """A weight [N, K]."""

    codes: Tensor
    """uint8 [N, K / 32, 16]: see `dequantise`."""
    scales: Tensor
    """uint8 [N, K / 32]."""

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        rows, groups = self.scales.shape
        return torch.Size((rows, groups * _BLOCK))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.codes.nbytes + self.scales.nbytes

    @property
    def column_multiple(self) -> int:
        """See `QuantizedWeight`: a shard has whole blocks."""
        return _BLOCK

    def __getitem__(self, rows: slice | Tensor) -> Mxfp4Weight:
        """Some rows."""
        return Mxfp4Weight(self.codes[rows], self.scales[rows])

    def columns(self, first: int, count: int) -> Mxfp4Weight:
        """See `QuantizedWeight`."""
        first, count = first // _BLOCK, count // _BLOCK
        return Mxfp4Weight(self.codes.narrow(1, first, count), self.scales.narrow(1, first, count))

    def padded(self, rows: int) -> Mxfp4Weight:
        """See `QuantizedWeight`: the code 0 stands for 0."""
        if not rows:
            return self
        codes = F.pad(self.codes, (0, 0, 0, 0, 0, rows))
        return Mxfp4Weight(codes, F.pad(self.scales, (0, 0, 0, rows)))

    def to(self, device: torch.device) -> Mxfp4Weight:
        """On another device."""
        return Mxfp4Weight(self.codes.to(device), self.scales.to(device))

    def dequantise(self) -> Tensor:
        """float32 [N, K]."""
        return dequantise(self.codes, self.scales)

    def blocks(self) -> BlockQuantized:
        """The same numbers as the CPU kernels run them, made as rows are read."""
        return UnreadWeight("mxfp4", self.shape, lambda rows: self[rows]._as_blocks())

    def _as_blocks(self) -> BlockQuantized:
        codes = nibbles(self.codes).flatten(1).view(torch.int8)
        return BlockQuantized("mxfp4", codes, self.scales)


def stack(codes: Tensor, scales: Tensor) -> ExpertStack:
    """The experts of uint8 codes [E, N, K / 32, 16] and scales [E, N, K / 32]."""
    shape = torch.Size((*scales.shape[:2], scales.shape[2] * _BLOCK))
    return ExpertStack(shape, lambda expert: Mxfp4Weight(codes[expert], scales[expert]))
