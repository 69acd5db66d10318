"""NVFP4 (NVIDIA 2025, arXiv:2509.25149): 4-bit floats in blocks of 16 whose scale is an E4M3
number, with one float32 factor for all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.block_kinds import E2M1, KINDS
from baton_worker.kernels.fp8 import check_numbers
from baton_worker.kernels.quantized_weights import BlockQuantized, UnreadWeight, nibbles


@dataclass(frozen=True, slots=True)
class Nvfp4Weight:
    """A weight [N, K]."""

    codes: Tensor
    """uint8 [N, K / 2]: two numbers per byte, the first in its low half."""
    scales: Tensor
    """float8_e4m3fn [N, K / 16]."""
    factor: Tensor
    """float32 []: of all scales."""

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        rows, half = self.codes.shape
        return torch.Size((rows, 2 * half))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.codes.nbytes + self.scales.nbytes + self.factor.nbytes

    @property
    def column_multiple(self) -> int:
        """See `QuantizedWeight`: a shard has whole blocks."""
        return self.shape[1] // self.scales.shape[1]

    def __getitem__(self, rows: slice | Tensor) -> Nvfp4Weight:
        """Some rows."""
        return Nvfp4Weight(self.codes[rows], self.scales[rows], self.factor)

    def columns(self, first: int, count: int) -> Nvfp4Weight:
        """See `QuantizedWeight`."""
        block = self.column_multiple
        codes = self.codes.narrow(1, first // 2, count // 2)
        scales = self.scales.narrow(1, first // block, count // block)
        return Nvfp4Weight(codes, scales, self.factor)

    def padded(self, rows: int) -> Nvfp4Weight:
        """See `QuantizedWeight`: the code 0 stands for 0."""
        if not rows:
            return self
        codes = F.pad(self.codes, (0, 0, 0, rows))
        scales = F.pad(self.scales.view(torch.uint8), (0, 0, 0, rows))
        return Nvfp4Weight(codes, scales.view(self.scales.dtype), self.factor)

    def to(self, device: torch.device) -> Nvfp4Weight:
        """On another device."""
        return Nvfp4Weight(self.codes.to(device), self.scales.to(device), self.factor.to(device))

    def dequantise(self) -> Tensor:
        """float32 [N, K]."""
        table = torch.tensor(E2M1, device=self.codes.device)
        numbers = table[nibbles(self.codes).int()]
        groups = torch.unflatten(numbers, -1, (self.scales.shape[-1], -1))
        return (groups * (self.scales.float() * self.factor)[..., None]).flatten(-2)

    def blocks(self) -> BlockQuantized | None:
        """The same numbers as the CPU kernels run them, made as rows are read; None where a row is
        no whole number of their super groups."""
        if self.shape[1] % KINDS["nvfp4"].multiple or self.column_multiple != KINDS["nvfp4"].group:
            return None
        return UnreadWeight("nvfp4", self.shape, lambda rows: self[rows]._as_blocks())

    def _as_blocks(self) -> BlockQuantized:
        check_numbers(self.scales)
        rows, depth = self.shape
        factors = self.factor.expand(rows, depth // KINDS["nvfp4"].multiple).contiguous()
        codes = nibbles(self.codes).view(torch.int8)
        return BlockQuantized("nvfp4", codes, factors, scale_steps=self.scales.view(torch.int8))
