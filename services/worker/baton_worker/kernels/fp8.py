"""Products of 8-bit floats (E4M3: Micikevicius et al. 2022, arXiv:2209.05433), in torch.

    y[t, n] = sum over k of  x_scale * x_code[t, k] * w_scale * w_code[n, k]

A scale is that of a block. Of weights a block is the whole tensor, a row, or 128 by 128 as in
DeepSeek-V3 (arXiv:2412.19437, 3.3); of inputs it is the whole tensor, a token, or 128 channels of a
token. The scale of an input is stored with the checkpoint ("static") or that of its largest number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.quantized_weights import BlockQuantized

MOST = torch.finfo(torch.float8_e4m3fn).max
"""448: what the largest number of a block becomes."""
_LEAST = torch.finfo(torch.float32).tiny
"""A block of zeros has a scale too."""


def dequantise(codes: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """float8 [..., rows, columns] and [..., ceil(rows / a), ceil(columns / b)] to float32."""
    rows, columns = codes.shape[-2:]
    scales = scales.float().repeat_interleave(block[0], -2)[..., :rows, :]
    scales = scales.repeat_interleave(block[1], -1)[..., :columns]
    return codes.float().mul_(scales)


@dataclass(frozen=True, slots=True)
class Inputs:
    """How activations are rounded before a product."""

    group: int | None = None
    """Channels of a token that share a scale; None is all of them."""
    scale: Tensor | None = None
    """float32 []: that of every input, if the checkpoint was calibrated."""
    per_tensor: bool = False
    """Whether all tokens share one scale: then what a token gets depends on the others."""
    most: float | None = None
    """Scales are at most as if this were the largest number ("activation_scale_ub")."""

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, K] to codes float8 [T, K] and scales float32 [T, ceil(K / group)]."""
        width = self.group or x.shape[1]
        scales = self._scales(x, width)
        wide = scales.repeat_interleave(width, 1)[:, : x.shape[1]]
        codes = (x.float() / wide).clamp_(-MOST, MOST).to(torch.float8_e4m3fn)
        return codes, scales

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
        return (largest / MOST).clamp(min=_LEAST).contiguous()


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

    def to(self, device: torch.device) -> Fp8Weight:
        """On another device."""
        scale = self.inputs.scale
        inputs = Inputs(
            self.inputs.group,
            None if scale is None else scale.to(device),
            self.inputs.per_tensor,
            self.inputs.most,
        )
        return Fp8Weight(self.codes.to(device), self.scales.to(device), self.block, inputs)

    def dequantise(self) -> Tensor:
        """float32 [N, K]."""
        return dequantise(self.codes, self.scales, self.block)

    def blocks(self) -> BlockQuantized | None:
        """The CPU kernels have no product of 8-bit floats."""
        return None


def product(x: Tensor, weight: Fp8Weight) -> Tensor:
    """x [T, K] rounded as the weight says, times the weight: float32 [T, N]. The twin of
    `kernels.triton.fp8`."""
    codes, scales = weight.inputs.quantise(x)
    width = weight.inputs.group or x.shape[1]
    return dequantise(codes, scales, (1, width)) @ weight.dequantise().T
