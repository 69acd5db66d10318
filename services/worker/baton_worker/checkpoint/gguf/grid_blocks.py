"""GGUF types whose blocks hold indices into a grid, or powers of three: IQ1 to IQ3, TQ1 and TQ2.

The `gguf` package has the grids. It decodes blocks whose factor is set to 1, so each value is a
step times an entry of a table; the steps are read here, and division finds the entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.kernels.block_kinds import KINDS, TABLES
from baton_worker.kernels.quantized_weights import BlockQuantized

_Type = gguf.GGMLQuantizationType
_Blocks = npt.NDArray[np.uint8]
_ONE = np.float16(1).view(np.uint16)


@dataclass(frozen=True, slots=True)
class GridType:
    """A type of blocks of 256 values."""

    type: gguf.GGMLQuantizationType
    kind: str
    steps: Callable[[_Blocks], npt.NDArray[np.integer]]
    """Whole multiples of the factor in blocks [n, bytes], [n, groups]; none: [n, 0]."""
    factor: int = 0
    """Byte of the half-precision factor; -1 where `_Scattered` reads it."""

    def read(self, block: Tensor) -> BlockQuantized:
        """Decode blocks uint8 [N, blocks, bytes]."""
        rows = len(block)
        plain = block.reshape(-1, block.shape[-1]).numpy().copy()
        factors = _set_factor(plain, self.factor).reshape(rows, -1)
        steps = self.steps(plain).astype(np.int8)
        values = gguf.quants.dequantize(plain, self.type)
        if steps.shape[1]:
            values = values / np.repeat(steps.astype(np.float32), 256 // steps.shape[1], 1)
        groups = 256 // KINDS[self.kind].group
        if 0 < steps.shape[1] < groups:
            steps = np.repeat(steps, groups // steps.shape[1], 1)
        scale_steps = torch.from_numpy(steps.reshape(rows, -1)) if steps.size else None
        codes = _codes(torch.from_numpy(values).view(rows, -1), self.kind)
        return BlockQuantized(self.kind, codes, torch.from_numpy(factors), scale_steps=scale_steps)


def _set_factor(blocks: _Blocks, at: int) -> npt.NDArray[np.float16]:
    """Set the factors of blocks to 1; returns those that were there, [n]."""
    if at < 0:
        return _set_scattered(blocks)
    bytes_of = blocks[:, at:] if at + 2 == blocks.shape[1] else blocks[:, at : at + 2]
    factors = bytes_of.copy().view(np.float16)[:, 0]
    bytes_of[:] = np.full(len(blocks), _ONE).view(np.uint8).reshape(-1, 2)
    return factors


def _set_scattered(blocks: _Blocks) -> npt.NDArray[np.float16]:
    """IQ1_M has four bits of the factor above each 16 bits of steps."""
    words = blocks[:, 48:].copy().view(np.uint16)
    shifts = np.array([12, 8, 4, 0], np.uint16)
    parts = (words & np.uint16(0xF000)) >> shifts
    factors: npt.NDArray[np.float16] = np.bitwise_or.reduce(parts, 1).view(np.float16)
    ones = (_ONE << shifts) & np.uint16(0xF000)
    blocks[:, 48:] = ((words & np.uint16(0x0FFF)) | ones).view(np.uint8)
    return factors


def _codes(values: Tensor, kind: str) -> Tensor:
    """int8 indices of values [N, K] in the table of a kind, or the whole numbers that they are."""
    table = TABLES.get(KINDS[kind].values)
    if table is None:
        return values.to(torch.int8)
    entries = torch.tensor(table)
    # All entries and values are whole multiples of 1 / 8, between -16 and 16.
    places = torch.zeros(257, dtype=torch.int8)
    for code in reversed(range(len(table))):
        places[int(entries[code] * 8) + 128] = code
    return places[(values * 8).to(torch.int64) + 128]


def _high_nibble(first: int) -> Callable[[_Blocks], npt.NDArray[np.integer]]:
    """2 n + 1 of the uppermost four bits of every other 32-bit word."""

    def steps(blocks: _Blocks) -> npt.NDArray[np.integer]:
        words = blocks[:, first:].copy().view(np.uint32)
        words = words[:, 1::2] if words.shape[1] == 16 else words
        return 2 * (words >> 28).astype(np.int64) + 1

    return steps


def _nibbles(first: int) -> Callable[[_Blocks], npt.NDArray[np.integer]]:
    """2 n + 1 of each nibble from a byte to the end."""

    def steps(blocks: _Blocks) -> npt.NDArray[np.integer]:
        packed = blocks[:, first:]
        return 2 * np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1) + 1

    return steps


def _iq1_s(blocks: _Blocks) -> npt.NDArray[np.integer]:
    return 2 * (blocks[:, 34:].copy().view(np.uint16) >> 12 & 7) + 1


def _iq1_m(blocks: _Blocks) -> npt.NDArray[np.integer]:
    words = blocks[:, 48:].copy().view(np.uint16)
    steps = words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    return 2 * steps.reshape(len(blocks), -1) + 1


def _none(blocks: _Blocks) -> npt.NDArray[np.integer]:
    return np.empty((len(blocks), 0), np.int8)


GRID_TYPES = {
    form.type: form
    for form in (
        GridType(_Type.IQ1_S, "iq1_super", _iq1_s),
        GridType(_Type.IQ1_M, "iq1_super", _iq1_m, factor=-1),
        GridType(_Type.IQ2_XXS, "iq2_super", _high_nibble(2)),
        GridType(_Type.IQ2_XS, "iq2_super", _nibbles(66)),
        GridType(_Type.IQ2_S, "iq2_super", _nibbles(74)),
        GridType(_Type.IQ3_XXS, "iq3_xxs_super", _high_nibble(66)),
        GridType(_Type.IQ3_S, "iq3_s_super", _nibbles(106)),
        GridType(_Type.TQ1_0, "ternary", _none, factor=52),
        GridType(_Type.TQ2_0, "ternary", _none, factor=64),
    )
}
"""By GGUF type."""
