"""8-bit KV: one byte per channel and a scale per head, in torch.

    a row of a page     [ codes: head_dim bytes | scale: float32 | padding ]      x = scale * code

A row has padding on a GPU, whose threads copy 16 bytes at once from multiples of 16. Each key or
value of each head has its own scale, the smallest that clips no channel, or the checkpoint's scale
of the whole layer. Either way, the stored bytes of a token depend on that token only. The twins in
C++ are in `kernels/cpu/pages.h`; they store the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

SCALE_BYTES = 4
ALIGNMENT = 16
"""Bytes behind the codes of a row on a GPU: heads of multiples of 16 channels begin at those."""
_LEAST = 1e-30
"""Replaces smaller maxima, so that a scale has an inverse."""


@dataclass(frozen=True, slots=True)
class KVCodes:
    """An 8-bit code."""

    name: str
    number: int
    """Number in the structures of the C++ kernels, where 0 is plain numbers."""
    most: float
    """The greatest code."""
    dtype: torch.dtype
    tail: int = SCALE_BYTES
    """Bytes of a row behind its codes: the scale, and zeros."""

    def on(self, device: torch.device) -> KVCodes:
        """The same code in rows as a device reads them."""
        return replace(self, tail=ALIGNMENT) if device.type == "cuda" else self

    def __str__(self) -> str:
        """Its name."""
        return self.name

    def encode(self, x: Tensor, scales: Tensor | None = None) -> Tensor:
        """Floats [..., head_dim] to uint8 [..., head_dim + tail].

        `scales` are float32 and broadcast to [..., 1]; larger values are clipped. A row with
        a non-finite value decodes to NaN, so that a broken sequence is detected.
        """
        x = x.float()
        most = x.abs().amax(-1, keepdim=True)
        least = most.clamp_min(_LEAST) * (1 / self.most)
        scale = least if scales is None else scales.expand_as(least)
        scale = torch.where(most.isfinite(), scale, float("nan"))
        codes = (x * scale.reciprocal()).nan_to_num().clamp(-self.most, self.most)
        if not self.dtype.is_floating_point:
            codes = codes.round()
        parts = (codes.to(self.dtype).view(torch.uint8), scale.view(torch.uint8))
        return F.pad(torch.cat(parts, dim=-1), (0, self.tail - SCALE_BYTES))

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """uint8 [..., head_dim + tail] to floats [..., head_dim]."""
        codes, tail = rows[..., : -self.tail], rows[..., -self.tail :]
        codes = codes.contiguous().view(self.dtype)
        scale = tail[..., :SCALE_BYTES].contiguous().view(torch.float32)
        return (codes.float() * scale).to(dtype)


CODES = {
    "int8": KVCodes("int8", 1, 127.0, torch.int8),
    "fp8": KVCodes("fp8", 2, 448.0, torch.float8_e4m3fn),
}
"""By the name in the settings; pages of "auto" hold numbers of the model's dtype. FP8 is e4m3
(Micikevicius et al. 2022, arXiv:2209.05433)."""


def row_width(head_dim: int, codes: KVCodes | None) -> int:
    """Elements of a page per key or value of one head."""
    return head_dim if codes is None else head_dim + codes.tail
