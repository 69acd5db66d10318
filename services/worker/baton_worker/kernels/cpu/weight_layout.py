"""Weights in the layout of `formats.h`: panels of columns, each one stream of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.block_kinds import KINDS, Kind
from baton_worker.kernels.quantized_weights import BlockQuantized, Rounding, concatenate

FORMATS = {
    torch.float32: 0,
    torch.bfloat16: 1,
    "int8": 2,
    "int4": 3,
    "int4_minimum": 4,
    "int4_super": 5,
    "int6_super": 6,
    "int4_offset": 7,
    "compact": 8,
    "mxfp4": 9,
    "nvfp4": 10,
    "fp8": 11,
    "int5": 12,
    "int5_minimum": 13,
    "int5_super": 14,
    "int3_super": 15,
    "int2_super": 16,
    "ternary": 17,
    "iq4": 18,
    "iq4_super": 19,
    "iq3_xxs_super": 20,
    "iq3_s_super": 21,
    "iq2_super": 22,
    "iq1_super": 23,
    "nf4": 24,
    "fp4": 25,
    "int8_float": 26,
}
"""Dtypes, kinds of blocks and `compact.py`, as `product.h` numbers them."""
_FIRST_RARE = FORMATS["int5"]
_AT_ONCE = 1 << 20
"""Bytes of a weight in float32 that are packed at a time."""
_WHOLE = 32
"""Values of k whose codes lie together, at most."""
_CHUNK = {torch.float32: 1, torch.bfloat16: 2}
"""Values of k that lie side by side in a panel of floats."""


def library_of(form: int) -> str:
    """The library of the product with a format."""
    return "linear" if form < _FIRST_RARE else "block_linear"


def arranged(rows: Tensor, width: int, gated: bool) -> Tensor:
    """Rows [N, ...] in the order of the packed columns, padded with zeros to whole panels.

    If gated, each `width` rows of the first half are followed by the same rows of the second.
    """
    parts = rows.chunk(2) if gated else (rows,)
    panel = width if gated else 2 * width
    missing = -len(parts[0]) % panel
    padded = [_pad(part, missing) for part in parts]
    cut = [part.view(-1, panel, *part.shape[1:]) for part in padded]
    return torch.stack(cut, 1).flatten(0, 2)


def _pad(rows: Tensor, missing: int) -> Tensor:
    padding = (0, 0) * (rows.ndim - 1) + (0, missing)
    return F.pad(rows, padding) if missing else rows.contiguous()


def pack(
    weight: Tensor | BlockQuantized | Rounding,
    width: int,
    gated: bool,
    empty: Callable[[Sequence[int], torch.dtype], Tensor],
    size: int = _AT_ONCE,
) -> Tensor:
    """`panels` in a tensor that `empty` makes, about `size` bytes of the weight at a time: at no
    moment is there a second copy of a large weight."""
    rows, depth = weight.shape
    rows, panel = (rows // 2, width) if gated else (rows, 2 * width)
    count, step = -(-rows // panel), max(1, size // (2 * width * depth * 4))
    packed: Tensor | None = None
    for first in range(0, count, step):
        some = slice(first * panel, (first + step) * panel)
        made = panels(_some(weight, some, gated), width, gated)
        if packed is None:
            packed = empty((count, *made.shape[1:]), made.dtype)
        packed[first : first + step] = made
    assert packed is not None
    return packed


def _some(
    weight: Tensor | BlockQuantized | Rounding, rows: slice, gated: bool
) -> Tensor | BlockQuantized:
    """These rows; if gated, those of each half."""
    if not gated:
        return weight[rows]
    half = weight.shape[0] // 2
    first, last = rows.start, min(rows.stop, half)
    both = slice(first, last), slice(half + first, half + last)
    if isinstance(weight, Tensor):
        return torch.cat([weight[some] for some in both])
    return concatenate([weight[some] for some in both])


def panels(weight: Tensor | BlockQuantized, width: int, gated: bool) -> Tensor:
    """The packed weight: [panels, ...], contiguous."""
    if isinstance(weight, BlockQuantized):
        parts = {name: arranged(part, width, gated) for name, part in weight.parts()}
        return _blocks(BlockQuantized(weight.kind, **parts), 2 * width)
    return _floats(arranged(weight, width, gated), 2 * width)


def _floats(weight: Tensor, columns: int) -> Tensor:
    """[N, K] to [N / columns, K / chunk, columns, chunk]; K is padded with zeros."""
    chunk = _CHUNK[weight.dtype]
    weight = F.pad(weight, (0, -weight.shape[1] % chunk))
    rows, depth = weight.shape
    cut = weight.view(rows // columns, columns, depth // chunk, chunk)
    return cut.transpose(1, 2).contiguous()


def _blocks(blocks: BlockQuantized, columns: int) -> Tensor:
    """uint8 [N / columns, K / chunk, bytes of a chunk]."""
    kind = KINDS[blocks.kind]
    heads = [
        _by_column(part, columns) for part in (blocks.scales, blocks.minima) if part is not None
    ]
    steps = [
        _by_column(part, columns)
        for part in (blocks.scale_steps, blocks.minimum_steps)
        if part is not None
    ]
    groups = torch.cat([*steps, _codes(blocks.codes, kind, columns)], -1)
    if kind.super_group:
        per_chunk = kind.super_group // kind.group
        groups = groups.view(len(groups), -1, per_chunk * groups.shape[-1])
    return torch.cat([*heads, groups], -1)


def _by_column(values: Tensor, columns: int) -> Tensor:
    """[N, groups] of any dtype to uint8 [N / columns, groups, columns * itemsize]."""
    cut = values.view(-1, columns, values.shape[1]).transpose(1, 2).contiguous()
    return cut.view(torch.uint8)


def _codes(codes: Tensor, kind: Kind, columns: int) -> Tensor:
    """int8 [N, K] to uint8 [N / columns, groups, bytes of the codes of a group]."""
    rows, depth = codes.shape
    cut = []
    for plane in _PLANES[kind.bits](codes, kind.lowest):
        # [N, cells of K / group, bytes] to [panel, group, cell, column, bytes].
        cells = plane.view(rows // columns, columns, plane.shape[1], -1).transpose(1, 2)
        cut.append(cells.reshape(len(cells), depth // min(kind.group, _WHOLE), -1))
    made = torch.cat(cut, -1)
    return made.view(len(made), depth // kind.group, -1)


def _bytes(codes: Tensor, lowest: int) -> list[Tensor]:
    """Two values of k side by side."""
    return [codes.view(torch.uint8).view(len(codes), -1, 2)]


def _nibbles(codes: Tensor, lowest: int) -> list[Tensor]:
    """Bytes of a 32-bit word: the four even values of k in the lower half, then the odd ones."""
    eight = (codes - lowest).to(torch.uint8).view(len(codes), -1, 8)
    return [eight[..., [0, 4, 1, 5]] | eight[..., [2, 6, 3, 7]] << 4]


def _two_bits(codes: Tensor, lowest: int) -> list[Tensor]:
    """A half of eight codes."""
    return [_halves(*(code << 2 * i for i, code in enumerate(_pairs(codes, lowest, 16))))]


def _three_bits(codes: Tensor, lowest: int) -> list[Tensor]:
    """A half of five codes, a byte of two, and a code in the bits that are left."""
    code = _pairs(codes, lowest, 16)
    lower = _halves(*(code[i] << 3 * i for i in range(5)), code[7] << 15)
    return [lower, (code[5] | code[6] << 3 | code[7] >> 1 << 6).byte()]


def _five_bits(codes: Tensor, lowest: int) -> list[Tensor]:
    """Five halves of three codes, and a code in the highest bits of all."""
    code = _pairs(codes, lowest, 32)
    return [
        _halves(*(code[3 * word + i] << 5 * i for i in range(3)), code[15] >> word << 15)
        for word in range(5)
    ]


def _six_bits(codes: Tensor, lowest: int) -> list[Tensor]:
    """Three halves of two codes, and two codes in the bits that are left."""
    code = _pairs(codes, lowest, 16)
    return [
        _halves(code[0], code[1] << 6, code[6] << 12),
        _halves(code[2], code[3] << 6, code[7] << 12),
        _halves(code[4], code[5] << 6, code[6] >> 4 << 12, code[7] >> 4 << 14),
    ]


def _pairs(codes: Tensor, lowest: int, count: int) -> tuple[Tensor, ...]:
    """The pairs of neighbours in cells of `count` values: int16 [N, K / count, 2] each."""
    return (codes - lowest).short().view(len(codes), -1, count // 2, 2).unbind(2)


def _halves(*parts: Tensor) -> Tensor:
    """The bits of all parts, int16 [N, cells, 2], as bytes of a 32-bit word."""
    return reduce(torch.bitwise_or, parts).contiguous().view(torch.uint8)


_PLANES: dict[int, Callable[[Tensor, int], list[Tensor]]] = {
    2: _two_bits,
    3: _three_bits,
    4: _nibbles,
    5: _five_bits,
    6: _six_bits,
    8: _bytes,
}
"""By bits of a code: the parts of a group's codes in a panel, each [N, cells, bytes of a cell]."""
