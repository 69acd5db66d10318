"""Products of 8-bit floats (E4M3: Micikevicius et al. 2022, arXiv:2209.05433), in torch.

    y[t, n] = sum over k of  x_scale * x_code[t, k] * w_scale * w_code[n, k]

Scales are per block. A weight's block is the whole tensor, a row, or 128 by 128 as in DeepSeek-V3
(arXiv:2412.19437, 3.3); an input's block is the whole tensor, a token, or 128 channels of a token.
An input's scale is stored in the checkpoint ("static") or computed from its maximum ("dynamic").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.quantized_weights import BlockQuantized, UnreadWeight

MOST = torch.finfo(torch.float8_e4m3fn).max
"""448: what the largest number of a block becomes."""
LEAST = torch.finfo(torch.float32).tiny
"""The least scale: a block of zeros has a scale too."""


def dequantise(codes: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """Codes float8 [..., rows, columns] times block scales [..., ceil(rows / a), ceil(columns /
    b)]: float32."""
    rows, columns = codes.shape[-2:]
    scales = scales.float().repeat_interleave(block[0], -2)[..., :rows, :]
    scales = scales.repeat_interleave(block[1], -1)[..., :columns]
    return codes.float().mul_(scales)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rounding of activations before a product."""

    group: int | None = None
    """Channels of a token that share a scale; None is all of them."""
    scale: Tensor | None = None
    """float32 []: that of every input, if the checkpoint was calibrated."""
    per_tensor: bool = False
    """Whether all tokens share one scale: then what a token gets depends on the others."""
    most: float | None = None
    """Scales are at most as if this were the largest number ("activation_scale_ub")."""

    @property
    def kind(self) -> tuple[int | None, float | None, bool, float | None]:
        """Equal for inputs that are rounded alike."""
        scale = None if self.scale is None else float(self.scale)
        return self.group, scale, self.per_tensor, self.most

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, K] to codes float8 [T, K] and scales float32 [T, ceil(K / group)]."""
        width = self.group or x.shape[1]
        scales = self._scales(x, width)
        wide = scales.repeat_interleave(width, 1)[:, : x.shape[1]]
        codes = (x.float() / wide).clamp_(-MOST, MOST).to(torch.float8_e4m3fn)
        return codes, scales

    def in_columns(self, x: Tensor, multiple: int) -> tuple[Tensor, Tensor]:
        """The same with rows of zeros up to a multiple, and scales contiguous along tokens, as
        products by libraries read them."""
        codes, scales = self.quantise(F.pad(x, (0, 0, 0, -len(x) % multiple)))
        return codes, scales.T.clone(memory_format=torch.contiguous_format).T

    def _scales(self, x: Tensor, width: int) -> Tensor:
        groups = -(-x.shape[1] // width)
        if self.scale is not None:
            return self.scale.float().expand(len(x), groups).contiguous()
        padded = F.pad(x.float().abs(), (0, groups * width - x.shape[1]))
        largest = torch.unflatten(padded, 1, (groups, width)).amax(-1)
        if self.per_tensor and len(x):
            largest = largest.amax().expand_as(largest)
        if self.most is not None:
            largest = largest.clamp(max=self.most)
        # By a tensor: a GPU multiplies by the inverse of a number, which rounds otherwise.
        most = torch.full_like(largest, MOST)
        return (largest / most).clamp(min=LEAST).contiguous()


class Fp8Stack(NamedTuple):
    """Weights [E, N, K] whose inputs are rounded alike: those of experts, or one."""

    codes: Tensor
    """float8_e4m3fn [E, N, K]."""
    scales: Tensor
    """float32 [E, ceil(N / a), ceil(K / b)]."""
    block: tuple[int, int]
    """Rows and columns a, b that share a scale."""
    inputs: Inputs

    @property
    def shape(self) -> torch.Size:
        """[E, N, K]."""
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A weight [N, K]."""

    codes: Tensor
    """float8_e4m3fn [N, K]."""
    scales: Tensor
    """float32 [ceil(N / a), ceil(K / b)]."""
    block: tuple[int, int]
    """Rows and columns a, b that share a scale."""
    inputs: Inputs

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    @property
    def column_multiple(self) -> int:
        """See `QuantizedWeight`: a shard has whole blocks; a block may be as long as a row."""
        return 1 if self._spans_rows else self.block[1]

    @property
    def _spans_rows(self) -> bool:
        return self.block[1] >= self.shape[1]

    def __getitem__(self, rows: slice | Tensor) -> Fp8Weight:
        """Some rows, with their scales."""
        scales = self.scales.repeat_interleave(self.block[0], 0)[: self.shape[0]]
        return Fp8Weight(self.codes[rows], scales[rows], (1, self.block[1]), self.inputs)

    def columns(self, first: int, count: int) -> Fp8Weight:
        """See `QuantizedWeight`."""
        codes, width = self.codes.narrow(1, first, count), self.block[1]
        if self._spans_rows:
            return Fp8Weight(codes, self.scales, (self.block[0], count), self.inputs)
        scales = self.scales.narrow(1, first // width, -(-count // width))
        return Fp8Weight(codes, scales, self.block, self.inputs)

    def padded(self, rows: int) -> Fp8Weight:
        """See `QuantizedWeight`."""
        if not rows:
            return self
        each = self[:]
        codes = F.pad(each.codes.view(torch.uint8), (0, 0, 0, rows)).view(torch.float8_e4m3fn)
        scales = F.pad(each.scales, (0, 0, 0, rows))
        return Fp8Weight(codes, scales, each.block, self.inputs)

    def to(self, device: torch.device) -> Fp8Weight:
        """Copy to another device, each tensor contiguous, as kernels read it."""
        scale = self.inputs.scale
        inputs = Inputs(
            self.inputs.group,
            None if scale is None else scale.to(device),
            self.inputs.per_tensor,
            self.inputs.most,
        )
        codes, scales = self.codes.contiguous(), self.scales.contiguous()
        return Fp8Weight(codes.to(device), scales.to(device), self.block, inputs)

    def stack(self) -> Fp8Stack:
        """This weight alone, [1, N, K]."""
        return Fp8Stack(self.codes[None], self.scales[None], self.block, self.inputs)

    def dequantise(self) -> Tensor:
        """float32 [N, K]."""
        return dequantise(self.codes, self.scales, self.block)

    def blocks(self) -> BlockQuantized | None:
        """The same numbers in blocks for the CPU kernels, converted as rows are read, for inputs
        that are not rounded; None if a group would span two scale blocks."""
        group = KINDS["fp8"].group
        if self.shape[1] % group or (not self._spans_rows and self.block[1] % group):
            return None
        return UnreadWeight("fp8", self.shape, lambda rows: self[rows]._as_blocks())

    def _as_blocks(self) -> BlockQuantized:
        """Blocks of rows, with per-row scales."""
        check_numbers(self.codes)
        group = KINDS["fp8"].group
        scales = self.scales.float().repeat_interleave(-(-self.block[1] // group), 1)
        scales = scales[:, : self.shape[1] // group].contiguous()
        return BlockQuantized("fp8", self.codes.view(torch.int8), scales)


def check_numbers(codes: Tensor) -> None:
    """Refuse NaN codes, which the CPU kernels would read as 480.

    Raises:
        ModelError: a float8 code is NaN.
    """
    if (codes.view(torch.uint8) & 0x7F == 0x7F).any():
        raise ModelError("The checkpoint is damaged: an 8-bit float in it is no number.")


def product(x: Tensor, weight: Fp8Weight) -> Tensor:
    """Round x [T, K] as the weight requires and multiply: float32 [T, N]. The twin of
    `kernels.triton.fp8`."""
    codes, scales = weight.inputs.quantise(x)
    width = weight.inputs.group or x.shape[1]
    return dequantise(codes, scales, (1, width)) @ weight.dequantise().T
