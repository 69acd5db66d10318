"""EXL3 checkpoints of ExLlamaV3: trellis-coded weights of 1 to 8 bits.

QTIP (Tseng et al. 2024, arXiv:2406.11235) with a computed codebook: a tile of 16 x 16 values is a
ring of 256 * bits bits, and the 16 bits that end with a value's own are its state. A hash of the
state is the value: there is no table. The weight so coded is rotated on both sides by Hadamard
matrices of 128 (Tseng et al. 2024, arXiv:2402.04396), with a scale or sign per row and column:

    W[n, k] = svh[n] * (H C H)[k, n] * suh[k]            C[k, n] coded, H block-diagonal

No kernel here multiplies with such codes: layers get floats, and the log says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.rotated_linear import rotate
from baton_worker.quantization.collect import Format, Formats, Parts

_TILE, _BLOCK, _STATE = 16, 128, 16
"""Rows and columns of a tile; size of a Hadamard matrix; bits of a state."""
_BITS = range(1, 9)
_WORD = 0xFFFFFFFF


def formats(given: SimpleNamespace) -> Formats:
    """The format of a `quantization_config`: `codebook`, which old checkpoints do not name. Bits
    are seen from each tensor.

    Raises:
        ModelError: the codebook is unknown.
    """
    codebook = vars(given).get("codebook") or "3inst"
    if codebook not in CODEBOOKS:
        known = ", ".join(CODEBOOKS)
        raise ModelError(f"EXL3's codebook {codebook} cannot be read. Baton reads: {known}.")
    marker = set() if codebook == "3inst" else {codebook}
    spellings = [
        frozenset({"trellis", left, right, *marker})
        for left, right in product(("suh", "su"), ("svh", "sv"))
    ]
    form = Format(spellings[0], partial(_read, codebook), others=tuple(spellings[1:]))
    return lambda module: form


def _read(codebook: str, parts: Parts) -> Exl3Weight:
    """trellis int16 [K / 16, N / 16, 16 * bits]; suh float16 [K] or su, the bits of signs, int16
    [K / 16]; svh and sv the same of N."""
    trellis = parts["trellis"]
    left = parts["suh"] if "suh" in parts else _signs(parts["su"])
    right = parts["svh"] if "svh" in parts else _signs(parts["sv"])
    deep, wide, size = trellis.shape
    if trellis.dtype is not torch.int16 or size % _TILE or size // _TILE not in _BITS:
        raise ValueError(f"a tile of {size} words is none of 1 to 8 bits")
    if left.shape != (deep * _TILE,) or right.shape != (wide * _TILE,):
        raise ValueError("the scales are not those of the trellis")
    if len(left) % _BLOCK or len(right) % _BLOCK:
        raise ValueError(f"rows and columns are not multiples of {_BLOCK}")
    return Exl3Weight(trellis, left, right, codebook, torch.arange(len(right)))


def _signs(words: Tensor) -> Tensor:
    """int16 [n / 16] to float16 [n]: a bit that is set, the lowest first, stands for -1."""
    bits = words.int()[:, None] >> torch.arange(_TILE) & 1
    return (1 - 2 * bits).flatten().to(torch.float16)


@dataclass(frozen=True, slots=True)
class Exl3Weight:
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
    """The block of 128 outputs that was decoded last, for those who read a few rows at a time."""

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
        return _BLOCK

    def __getitem__(self, rows: slice | Tensor) -> Exl3Weight:
        """Some rows."""
        return replace(self, numbers=self.numbers[rows], _decoded=self._decoded)

    def columns(self, first: int, count: int) -> Exl3Weight:
        """See `QuantizedWeight`."""
        trellis = self.trellis.narrow(0, first // _TILE, count // _TILE)
        suh = self.suh.narrow(0, first, count)
        return replace(self, trellis=trellis, suh=suh, _decoded={})

    def padded(self, rows: int) -> Exl3Weight:
        """See `QuantizedWeight`."""
        return replace(self, numbers=F.pad(self.numbers, (0, rows), value=-1))

    def to(self, device: torch.device) -> Exl3Weight:
        """On another device."""
        parts = {name: getattr(self, name).to(device) for name in ("trellis", "suh", "svh")}
        return replace(self, **parts, numbers=self.numbers.to(device), _decoded={})

    def dequantise(self) -> Tensor:
        """float32 [N, K]."""
        out = self.suh.new_zeros(self.shape, dtype=torch.float32)
        of = torch.div(self.numbers, _BLOCK, rounding_mode="floor")
        for block in {*of.tolist()} - {-1}:
            here = (of == block).nonzero()[:, 0]
            out[here] = self._block(block)[self.numbers[here] - block * _BLOCK]
        return out

    def blocks(self) -> None:
        """None: no kernel of blocks looks up a trellis."""

    def _block(self, block: int) -> Tensor:
        """float32 [128, K]: outputs 128 * block and the next."""
        if block not in self._decoded:
            self._decoded.clear()
            per = _BLOCK // _TILE
            tiles = _tiles(self.trellis[:, block * per : (block + 1) * per], self.codebook)
            coded = tiles.permute(1, 3, 0, 2).reshape(_BLOCK, -1).float()
            turned = rotate(rotate(coded, _hadamard()).T.contiguous(), _hadamard()).T
            right = self.svh[block * _BLOCK : (block + 1) * _BLOCK].float()
            self._decoded[block] = turned * self.suh.float() * right[:, None]
        return self._decoded[block]


@cache
def _hadamard() -> Tensor:
    """float32 [128, 128]: orthonormal, in Sylvester's order; symmetric."""
    matrix = torch.ones(1, 1)
    while len(matrix) < _BLOCK:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(_BLOCK)


def _tiles(trellis: Tensor, codebook: str) -> Tensor:
    """int16 [a, b, 16 * bits] to float16 [a, b, 16, 16], by input and output."""
    states = _states(trellis)[..., _order()]
    return torch.unflatten(_values(codebook)[states], -1, (_TILE, _TILE))


@cache
def _values(codebook: str) -> Tensor:
    """float16 [65536]: the value of every state. Hashing each state of a weight takes longer."""
    return CODEBOOKS[codebook](torch.arange(1 << _STATE))


def _states(trellis: Tensor) -> Tensor:
    """int64 [..., 256]: of each place of the ring the 16 bits that end with its own. Two words make
    one of 32 bits, the second one its upper half, whose highest bit comes first."""
    halves = trellis.long() & 0xFFFF
    words = halves[..., ::2] | halves[..., 1::2] << 16
    bits, total = trellis.shape[-1] // _TILE, words.shape[-1] * 32
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
    return torch.argsort((rows * _TILE + columns).flatten())


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
