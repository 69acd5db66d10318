"""GPTQ weights: small integers packed in 32-bit words, with scale and zero point per group.

    w[n, k] = scale[g, n] * (code[k, n] - zero[g, n])        g = groups[k]

(Frantar et al. 2022, arXiv:2210.17323.) Groups are contiguous in the inner dimension, or with
"act-order" arbitrary. AWQ and the packed integers of compressed-tensors are converted to this
layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.quantized_weights import BlockQuantized, UnreadWeight

BITS = (2, 3, 4, 8)
"""Of a code."""
_FLOAT_SCALED = "int8_float"
_PLAIN, _SHIFTED = ("int4", "int8"), "int4_offset"
"""Kinds of blocks whose codes have their zeros subtracted, and the one that keeps both."""


def unpack(stream: Tensor, bits: int) -> Tensor:
    """Unpack uint8 [..., n * bits / 8] to codes uint8 [..., n]: code i starts at bit i * bits of
    its row, lowest bits first; n is a multiple of 8."""
    cells = torch.unflatten(stream, -1, (-1, bits))
    codes = torch.empty((*cells.shape[:-1], 8), dtype=torch.uint8, device=stream.device)
    for i in range(8):
        byte, shift = divmod(i * bits, 8)
        code = cells[..., byte].to(torch.int16) >> shift
        if shift + bits > 8:
            code |= cells[..., byte + 1].to(torch.int16) << (8 - shift)
        codes[..., i] = code & ((1 << bits) - 1)
    return codes.flatten(-2)


def pack(codes: Tensor, bits: int) -> Tensor:
    """The inverse of `unpack`."""
    cells = torch.unflatten(codes, -1, (-1, 8))
    joined = torch.zeros_like(cells[..., 0], dtype=torch.int64)
    for i in range(8):
        joined |= cells[..., i].to(torch.int64) << (i * bits)
    return torch.stack([joined >> 8 * byte & 255 for byte in range(bits)], -1).byte().flatten(-2)


@dataclass(frozen=True, slots=True)
class GptqWeight:
    """A weight [N, K] of `bits` per code; dropped after loading if a kernel repacks it."""

    bits: int
    words: Tensor
    """int32 [K * bits / 32, N]: a column is one stream of codes, see `unpack`."""
    scales: Tensor
    """float16, bfloat16 or float32 [G, N]."""
    zeros: Tensor
    """int16 [G, N]: the code that stands for 0; it may be one more than the greatest code."""
    groups: Tensor
    """int32 [K]: which row of scales and zeros is that of k."""

    @staticmethod
    def of(codes: Tensor, bits: int, scales: Tensor, zeros: Tensor) -> GptqWeight:
        """Build from codes uint8 [N, K] with contiguous groups of one length; scales and zeros [G,
        N]."""
        words = pack(codes, bits).view(torch.int32).T.contiguous()
        runs = torch.arange(codes.shape[1], dtype=torch.int32) // (codes.shape[1] // len(scales))
        return GptqWeight(bits, words, scales.contiguous(), zeros.contiguous(), runs).checked()

    def checked(self) -> GptqWeight:
        """Return self after checking group indices, which kernels use without bounds checks.

        Raises:
            ValueError: the tensors' shapes or group indices are inconsistent.
        """
        columns, depth = self.shape
        first, last = (int(limit) for limit in self.groups.aminmax())
        fits = self.scales.shape == self.zeros.shape == (len(self.scales), columns)
        if not fits or len(self.words) * 32 != depth * self.bits:
            raise ValueError("scales, zeros and groups are not those of the codes")
        if first < 0 or last >= len(self.scales):
            raise ValueError("there are fewer scales than groups")
        return self

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return torch.Size((self.words.shape[1], len(self.groups)))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in (self.words, self.scales, self.zeros, self.groups))

    @property
    def column_multiple(self) -> int:
        """See `QuantizedWeight`: a shard has whole words."""
        return 32 // math.gcd(self.bits, 32)

    def __getitem__(self, rows: slice | Tensor) -> GptqWeight:
        """Some rows."""
        parts = (self.words[:, rows], self.scales[:, rows], self.zeros[:, rows])
        return GptqWeight(self.bits, *parts, self.groups)

    def columns(self, first: int, count: int) -> GptqWeight:
        """See `QuantizedWeight`."""
        words = self.words.narrow(0, first * self.bits // 32, count * self.bits // 32)
        groups = self.groups.narrow(0, first, count)
        return GptqWeight(self.bits, words, self.scales, self.zeros, groups)

    def padded(self, rows: int) -> GptqWeight:
        """See `QuantizedWeight`: a scale of 0 makes every code 0."""
        if not rows:
            return self
        words, scales, zeros = (
            F.pad(part, (0, rows)) for part in (self.words, self.scales, self.zeros)
        )
        return GptqWeight(self.bits, words, scales, zeros, self.groups)

    def to(self, device: torch.device) -> GptqWeight:
        """Copy to another device, each tensor contiguous, as kernels read it."""
        parts = (self.words, self.scales, self.zeros, self.groups)
        return GptqWeight(self.bits, *(part.contiguous().to(device) for part in parts))

    def codes(self) -> Tensor:
        """uint8 [N, K]."""
        return unpack(self.words.T.contiguous().view(torch.uint8), self.bits)

    def dequantise(self) -> Tensor:
        """float32 [N, K]: the twin of `kernels.triton.gptq`."""
        return self._shifted().float().mul_(self._by_column(self.scales).float())

    def blocks(self) -> BlockQuantized | None:
        """The same numbers in blocks for the CPU kernels, converted as rows are read; None if no
        kind fits: groups that are not whole blocks. Bytes hold codes whose scales are not
        half-precision numbers."""
        count, depth = len(self.scales), self.shape[1]
        kind = self._kind()
        run, rest = divmod(depth, count)
        runs = torch.arange(depth, device=self.groups.device) // max(run, 1)
        if kind is None or rest or run % KINDS[kind].group:
            return None
        if not torch.equal(runs, self.groups.long()):
            return None
        if not torch.equal(self.scales.half().float(), self.scales.float()):
            kind = _FLOAT_SCALED
        repeats = run // KINDS[kind].group
        return UnreadWeight(kind, self.shape, lambda rows: self[rows]._as_kind(kind, repeats))

    def _kind(self) -> str | None:
        """The kind of `KINDS` that represents all codes with these zero points."""
        lowest, highest = (int(limit) for limit in self.zeros.aminmax())
        lowest, highest = -highest, (1 << self.bits) - 1 - lowest
        fits = [k for k in _PLAIN if lowest >= KINDS[k].lowest and highest <= KINDS[k].highest]
        return _SHIFTED if self.bits == 4 and "int4" not in fits else next(iter(fits), None)

    def _as_kind(self, kind: str, repeats: int) -> BlockQuantized:
        scales = self.scales.float() if kind == _FLOAT_SCALED else self.scales.half()
        scales = _repeated(scales, repeats)
        if kind != _SHIFTED:
            return BlockQuantized(kind, self._shifted().to(torch.int8), scales)
        steps = _repeated(-self.zeros, repeats).to(torch.int8)
        return BlockQuantized(kind, self.codes().view(torch.int8), scales, minimum_steps=steps)

    def _shifted(self) -> Tensor:
        """int16 [N, K]: codes minus zero points."""
        return self.codes().to(torch.int16).sub_(self._by_column(self.zeros))

    def _by_column(self, values: Tensor) -> Tensor:
        """Expand [G, N] to [N, K]."""
        return values.T.index_select(1, self.groups.long())


def _repeated(values: Tensor, repeats: int) -> Tensor:
    """Expand [G, N] to [N, G * repeats]."""
    return values.T.repeat_interleave(repeats, 1)
