"""Trellis-coded weights, as ExLlamaV3 (EXL3) makes them.

QTIP (Tseng et al. 2024, arXiv:2406.11235) with a computed codebook: a tile of 16 x 16 values is a
ring of 256 * bits bits, and the 16 bits that end with a value's own are its state. A hash of the
state is the value: there is no table. The weight so coded is rotated on both sides by Hadamard
matrices of 128 (Tseng et al. 2024, arXiv:2402.04396), with a scale or sign per row and column:

    W[n, k] = svh[n] * (H C H)[k, n] * suh[k]            C[k, n] coded, H block-diagonal

"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.rotated_linear import rotate

TILE, BLOCK = 16, 128
"""Rows and columns of a tile; size of a Hadamard matrix."""
_STATE = 16
"""Bits of a state."""
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class TrellisWeight:
    """A weight [N, K]."""

    trellis: Tensor
    """int16 [K / 16, N' / 16, 16 * bits], of all N' outputs."""
    suh: Tensor
    """float16 [K]."""
    svh: Tensor
    """float16 [N']."""
    codebook: str
    numbers: Tensor
    """int64 [N]: the outputs that are rows of this weight; -1 is a row of zeros."""
    _decoded: dict[int, Tensor] = field(default_factory=dict, compare=False)
    """The block of 128 outputs that was decoded last, for callers that read a few rows at a
    time."""

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return torch.Size((len(self.numbers), len(self.suh)))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.trellis.nbytes + self.suh.nbytes + self.svh.nbytes

    @property
    def column_multiple(self) -> int:
        """See `QuantizedWeight`: a shard has whole Hadamard blocks."""
        return BLOCK

    def __getitem__(self, rows: slice | Tensor) -> TrellisWeight:
        """Some rows."""
        return replace(self, numbers=self.numbers[rows], _decoded=self._decoded)

    def columns(self, first: int, count: int) -> TrellisWeight:
        """See `QuantizedWeight`."""
        trellis = self.trellis.narrow(0, first // TILE, count // TILE)
        suh = self.suh.narrow(0, first, count)
        return replace(self, trellis=trellis, suh=suh, _decoded={})

    def padded(self, rows: int) -> TrellisWeight:
        """See `QuantizedWeight`."""
        return replace(self, numbers=F.pad(self.numbers, (0, rows), value=-1))

    def to(self, device: torch.device) -> TrellisWeight:
        """On another device."""
        parts = {name: getattr(self, name).to(device) for name in ("trellis", "suh", "svh")}
        return replace(self, **parts, numbers=self.numbers.to(device), _decoded={})

    def dequantise(self) -> Tensor:
        """float32 [N, K]."""
        out = self.suh.new_zeros(self.shape, dtype=torch.float32)
        of = torch.div(self.numbers, BLOCK, rounding_mode="floor")
        for block in {*of.tolist()} - {-1}:
            here = (of == block).nonzero()[:, 0]
            out[here] = self._block(block)[self.numbers[here] - block * BLOCK]
        return out

    def blocks(self) -> None:
        """None: no kernel of blocks decodes a trellis."""

    @property
    def first(self) -> int | None:
        """The first output, if rows are whole Hadamard blocks of outputs in order; else None."""
        start = int(self.numbers[0]) if len(self.numbers) else -1
        whole = start >= 0 and not (start % BLOCK or len(self.numbers) % BLOCK)
        in_order = torch.arange(start, start + len(self.numbers))
        return start if whole and torch.equal(self.numbers.cpu(), in_order) else None

    def _block(self, block: int) -> Tensor:
        """float32 [128, K]: outputs 128 * block and the next."""
        if block not in self._decoded:
            self._decoded.clear()
            per = BLOCK // TILE
            tiles = _tiles(self.trellis[:, block * per : (block + 1) * per], self.codebook)
            coded = tiles.permute(1, 3, 0, 2).reshape(BLOCK, -1).float()
            turned = rotate(rotate(coded, hadamard()).T.contiguous(), hadamard()).T
            right = self.svh[block * BLOCK : (block + 1) * BLOCK].float()
            self._decoded[block] = turned * self.suh.float() * right[:, None]
        return self._decoded[block]


@cache
def hadamard() -> Tensor:
    """float32 [128, 128]: orthonormal, in Sylvester's order; symmetric."""
    matrix = torch.ones(1, 1)
    while len(matrix) < BLOCK:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(BLOCK)


def _tiles(trellis: Tensor, codebook: str) -> Tensor:
    """int16 [a, b, 16 * bits] to float16 [a, b, 16, 16], by input and output."""
    states = _states(trellis)[..., _order()]
    return torch.unflatten(_values(codebook)[states], -1, (TILE, TILE))


@cache
def _values(codebook: str) -> Tensor:
    """float16 [65536]: the value of every state. Hashing each state of a weight takes longer."""
    return CODEBOOKS[codebook](torch.arange(1 << _STATE))


def _states(trellis: Tensor) -> Tensor:
    """int64 [..., 256]: of each place of the ring the 16 bits that end with its own. Two words make
    one of 32 bits, the second one its upper half, whose highest bit comes first."""
    halves = trellis.long() & 0xFFFF
    words = halves[..., ::2] | halves[..., 1::2] << 16
    bits, total = trellis.shape[-1] // TILE, words.shape[-1] * 32
    starts = (torch.arange(1, 257) * bits - _STATE) % total
    first, shift = starts // 32, 32 + _STATE - starts % 32
    pairs = words[..., first] << 32 | words[..., (first + 1) % words.shape[-1]]
    return pairs >> shift & 0xFFFF


@cache
def _order() -> Tensor:
    """int64 [256]: the place in the ring of each value of a tile, row by row. Rings follow the
    fragments of a tensor core: eight values for each of 32 lanes."""
    lane, step = torch.meshgrid(torch.arange(32), torch.arange(8), indexing="ij")
    rows = lane % 4 * 2 + step % 2 + step // 2 % 2 * 8
    columns = lane // 4 + step // 4 * 8
    return torch.argsort((rows * TILE + columns).flatten())


def _two_halves(hashed: Tensor) -> Tensor:
    """float16: the sum of two numbers near 1 that are made of the halves of a word."""
    mixed = hashed & 0x8FFF8FFF ^ 0x3B603B60
    low, high = ((mixed >> shift & 0xFFFF).to(torch.int32) for shift in (0, 16))
    return _as_half(low) + _as_half(high)


def _three_instructions(states: Tensor) -> Tensor:
    return _two_halves(states * 89226354 + 64248484 & _WORD)


def _multiplied(states: Tensor) -> Tensor:
    return _two_halves(states * 0xCBAC1FED & _WORD)


def _sum_of_bytes(states: Tensor) -> Tensor:
    """float16: the sum of the four bytes of a hash, about normal, brought to a deviation of 1."""
    hashed = states * 0x83DCD12D & _WORD
    total = torch.stack([hashed >> shift & 0xFF for shift in (0, 8, 16, 24)]).sum(0)
    numbers = _as_half(torch.tensor([0x1EEE, 0xC931], dtype=torch.int32)).double()
    return ((1024 + total) * numbers[0] + numbers[1]).to(torch.float16)


def _as_half(bits: Tensor) -> Tensor:
    """The half-precision numbers of int32 bit patterns below 2^16."""
    signed = torch.where(bits > 0x7FFF, bits - 0x10000, bits)
    return signed.to(torch.int16).view(torch.float16)


CODEBOOKS: dict[str, Callable[[Tensor], Tensor]] = {
    "3inst": _three_instructions,
    "mcg": _multiplied,
    "mul1": _sum_of_bytes,
}
"""Values float16 of states, by the name in the config; but for the first, a tensor of this name
stands beside every trellis."""
