"""Block-quantised weights: small integer codes with a scale per group, and their quantisation.

The kinds of blocks are in `kernels.block_kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import accumulate, groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.block_kinds import KINDS, TABLES

_EXPONENT_BIAS = 127
"""Of a scale that is a power of two (E8M0)."""
_AT_ONCE = 64 << 10
"""Values that are quantised at one time: the search for scales works in the cache, and no weight is
in memory as float32."""


@dataclass(frozen=True, slots=True)
class BlockQuantized:
    """A quantised weight [N, K]; dropped once a kernel has packed it."""

    kind: str
    codes: Tensor
    """int8 [N, K]."""
    scales: Tensor
    """float16 [N, K / group]; of a super kind the factors, [N, K / super_group]. float32 for
    `FLOAT_SCALES`, for mxfp4 uint8 exponents with a bias of 127."""
    minima: Tensor | None = None
    """The same for the minima, if the kind has any."""
    scale_steps: Tensor | None = None
    """int8 [N, K / group]: what a factor is multiplied by, of a super kind; of nvfp4 E4M3 floats by
    their bits."""
    minimum_steps: Tensor | None = None
    """The same for the minima; of a kind with offsets these, and the scale is multiplied."""

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.codes.shape

    def dequantise(self) -> Tensor:
        """float32 [N, K]: the plain twin of every kernel that takes blocks."""
        kind = KINDS[self.kind]
        weight = kind.numbers(self.codes).view(len(self.codes), -1, kind.group)
        if self.kind == "mxfp4":
            scales = self.scales.int()[..., None] - _EXPONENT_BIAS
            return torch.ldexp(weight, scales).flatten(1)
        steps = self.scale_steps
        if self.kind == "nvfp4" and steps is not None:
            steps = steps.view(torch.float8_e4m3fn)
        weight.mul_(_expanded(self.scales, steps))
        if kind.has_offset:
            weight.add_(_expanded(self.scales, self.minimum_steps))
        elif self.minima is not None:
            weight.add_(_expanded(self.minima, self.minimum_steps))
        return weight.flatten(1)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(part.nbytes for _, part in self.parts())

    @property
    def column_multiple(self) -> int:
        """See `QuantizedWeight`: a shard has whole groups, whole super groups of a super kind."""
        return KINDS[self.kind].multiple

    def blocks(self) -> BlockQuantized:
        """Self: the form into which other weights are converted for the CPU."""
        return self

    def __getitem__(self, rows: slice | Tensor) -> BlockQuantized:
        """Some rows."""
        return self._each(lambda part: part[rows])

    def columns(self, first: int, count: int) -> BlockQuantized:
        """See `QuantizedWeight`."""
        width = self.shape[1]
        return self._each(
            lambda part: part.narrow(
                1, first * part.shape[1] // width, count * part.shape[1] // width
            )
        )

    def padded(self, rows: int) -> BlockQuantized:
        """See `QuantizedWeight`."""
        return self._each(lambda part: F.pad(part, (0, 0, 0, rows))) if rows else self

    def to(self, device: torch.device) -> BlockQuantized:
        """On another device."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> BlockQuantized:
        """Apply a function to every tensor."""
        return BlockQuantized(self.kind, **{name: change(part) for name, part in self.parts()})

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors that are present, by field name; all have N rows."""
        for field in fields(self):
            part = getattr(self, field.name)
            if isinstance(part, Tensor):
                yield field.name, part


def nibbles(packed: Tensor) -> Tensor:
    """uint8 [..., n] to [..., 2 n]: of each byte the low half, then the high one."""
    return torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(-2)


def _expanded(values: Tensor, steps: Tensor | None) -> Tensor:
    """float32 [N, K / group, 1]."""
    values = values.to(torch.float32)
    if steps is not None:
        groups = steps.shape[1] // values.shape[1]
        values = values.repeat_interleave(groups, 1) * steps.to(torch.float32)
    return values[..., None]


class UnreadWeight(BlockQuantized):
    """Blocks that stay in their file: rows are read on access, by index or all of them by field.

    Args:
        kind: kind of all rows.
        shape: [N, K].
        read: reads some of the rows.
    """

    __slots__ = ("_read", "_shape")
    _read: Callable[[slice], BlockQuantized]
    _shape: torch.Size

    def __init__(
        self, kind: str, shape: torch.Size, read: Callable[[slice], BlockQuantized]
    ) -> None:
        for name, value in (("kind", kind), ("_shape", shape), ("_read", read)):
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self._shape

    def __getattr__(self, field: str) -> Any:
        # Called for attributes that are not set: every field of `BlockQuantized` but the kind.
        return getattr(self[:], field)

    def dequantise(self) -> Tensor:
        """See `BlockQuantized`."""
        return self[:].dequantise()

    def columns(self, first: int, count: int) -> UnreadWeight:
        """Some columns, still unread."""
        shape = torch.Size((self.shape[0], count))
        return UnreadWeight(self.kind, shape, lambda rows: self[rows].columns(first, count))

    def __getitem__(self, rows: slice | Tensor) -> BlockQuantized:
        """Some rows, in memory."""
        return self._read(rows) if isinstance(rows, slice) else self[:][rows]

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """See `BlockQuantized`; all rows."""
        return self[:].parts()


def concatenate(blocks: list[BlockQuantized]) -> BlockQuantized:
    """Concatenate the rows of weights of one kind."""
    assert len({some.kind for some in blocks}) == 1
    if len(blocks) == 1:
        return blocks[0]
    columns = zip(*(some.parts() for some in blocks), strict=True)
    merged = {parts[0][0]: torch.cat([part for _, part in parts]) for parts in columns}
    return BlockQuantized(blocks[0].kind, **merged)


def merge(blocks: list[BlockQuantized]) -> list[BlockQuantized]:
    """Merge adjacent weights of one kind, without copying; rows keep their order."""
    runs = [list(run) for _, run in groupby(blocks, lambda some: some.kind)]
    return [run[0] if len(run) == 1 else _stacked(run) for run in runs]


def _stacked(blocks: list[BlockQuantized]) -> UnreadWeight:
    """The rows of all, still unread."""
    ends = list(accumulate(some.shape[0] for some in blocks))

    def read(rows: slice) -> BlockQuantized:
        first, last, _ = rows.indices(ends[-1])
        return concatenate(
            [
                some[max(0, first - (end - some.shape[0])) : last - (end - some.shape[0])]
                for some, end in zip(blocks, ends, strict=True)
                if first < end and last > end - some.shape[0]
            ]
        )

    return UnreadWeight(blocks[0].kind, torch.Size((ends[-1], blocks[0].shape[1])), read)


def quantise(weight: Tensor, kind: str) -> BlockQuantized:
    """Round [N, K] floats to a kind of `ROUNDINGS`."""
    group = KINDS[kind].group
    parts = [
        ROUNDINGS[kind](rows.to(torch.float32).view(len(rows), -1, group))
        for rows in torch.split(weight, max(1, _AT_ONCE // weight.shape[1]))
    ]
    return concatenate(parts)


@dataclass(frozen=True, slots=True)
class Rounding:
    """A weight [N, K] that is quantised as it is read, some rows at a time, so its blocks are never
    all in memory."""

    weight: Tensor
    kind: str

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        return self.weight.shape

    def __getitem__(self, rows: slice) -> BlockQuantized:
        """Some rows."""
        return quantise(self.weight[rows], self.kind)

    def into(self, rounded: Tensor) -> None:
        """Write the dequantised blocks into a tensor of the weight's shape, possibly the weight
        itself."""
        step = max(1, _AT_ONCE // self.shape[1])
        for first in range(0, self.shape[0], step):
            some = slice(first, first + step)
            rounded[some] = self[some].dequantise()


def _nearest(groups: Tensor) -> BlockQuantized:
    codes = groups.abs()
    scales = (codes.amax(-1) / 127).to(torch.float16)
    _divide_(codes.copy_(groups), scales[..., None].float()).round_().clamp_(-127, 127)
    return BlockQuantized("int8", codes.to(torch.int8).flatten(1), scales)


def _least_squares(groups: Tensor) -> BlockQuantized:
    """Scale and minimum with the least squared error, over some shrunken ranges.

    For each range the codes are rounded, then scale and minimum refitted to those codes. Outliers
    cost a group less precision that way than if they always set the range. (llama.cpp's
    `make_qkx2_quants` searches in the same spirit.)
    """
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    best = torch.full_like(low, torch.inf)
    chosen = [torch.zeros_like(groups, dtype=torch.int8), *torch.zeros(2, *low.shape)]
    # Large tensors are allocated once, so that the search does not fragment the heap.
    codes, room, more = (torch.empty_like(groups) for _ in range(3))
    for shrink in torch.linspace(1.0, 0.7, 6).tolist():
        middle, half = (low + high) / 2, (high - low) / 2 * shrink
        _codes(groups, half / 7.5, middle - half, out=codes)
        scale, minimum = _refit(groups, codes, room, more)
        _codes(groups, scale, minimum, out=codes)
        torch.mul(codes, scale, out=room).add_(minimum).sub_(groups).square_()
        error = room.sum(-1, keepdim=True)
        better = error < best
        torch.where(better, error, best, out=best)
        for old, new in zip(chosen, (codes.to(torch.int8), scale, minimum), strict=True):
            torch.where(better, new, old, out=old)
    best_codes, scale, minimum = chosen
    scales, minima = scale[..., 0].to(torch.float16), minimum[..., 0].to(torch.float16)
    return BlockQuantized("int4_minimum", best_codes.flatten(1), scales, minima)


def _codes(groups: Tensor, scale: Tensor, minimum: Tensor, out: Tensor) -> None:
    """Nearest codes, for scale and minimum in stored precision."""
    scale, minimum = scale.half().float(), minimum.half().float()
    _divide_(torch.sub(groups, minimum, out=out), scale).round_().clamp_(0, 15)


def _refit(groups: Tensor, codes: Tensor, room: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """The straight line from codes to values, by least squares; two tensors like them are
    overwritten."""
    mean_code, mean = codes.mean(-1, keepdim=True), groups.mean(-1, keepdim=True)
    torch.sub(codes, mean_code, out=room)
    spread = torch.square(room, out=more).sum(-1, keepdim=True)
    product = torch.sub(groups, mean, out=more).mul_(room).sum(-1, keepdim=True)
    scale = _divide_(product, spread)
    minimum = mean - scale * mean_code
    return scale.half().float(), minimum.half().float()


def _divide_(values: Tensor, scale: Tensor) -> Tensor:
    """Divide in place; zero where the scale is zero: such a group has a single value."""
    return values.div_(scale.masked_fill(scale == 0, torch.inf))


def _eight_bit_floats(groups: Tensor) -> BlockQuantized:
    scales = groups.abs().amax(-1) / torch.finfo(torch.float8_e4m3fn).max
    codes = _divide_(groups.clone(), scales[..., None]).to(torch.float8_e4m3fn)
    return BlockQuantized("fp8", codes.view(torch.int8).flatten(1), scales)


def _four_bit_floats(groups: Tensor) -> BlockQuantized:
    """With the power of two that brings the largest value of a group between 4 and 8, as OCP
    Microscaling Formats 1.0 has it; what is over 6 becomes 6."""
    exponents = torch.frexp(groups.abs().amax(-1)).exponent - 3
    exponents.clamp_(-_EXPONENT_BIAS, _EXPONENT_BIAS)
    sizes = torch.tensor(TABLES["e2m1"][:8])
    near = _nearest_entries(torch.ldexp(groups.abs(), -exponents[..., None]), sizes)
    codes = (near + 8 * (groups < 0)).to(torch.int8)
    return BlockQuantized("mxfp4", codes.flatten(1), (exponents + _EXPONENT_BIAS).to(torch.uint8))


def _normal_quantiles(groups: Tensor) -> BlockQuantized:
    scales = groups.abs().amax(-1)
    near = _nearest_entries(
        _divide_(groups.clone(), scales[..., None]), torch.tensor(TABLES["nf4"])
    )
    return BlockQuantized("nf4", near.to(torch.int8).flatten(1), scales)


def _nearest_entries(values: Tensor, table: Tensor) -> Tensor:
    """int64: the index of the entry of an ascending table that is nearest to each value."""
    return torch.bucketize(values, ((table[1:] + table[:-1]) / 2).to(values.device))


ROUNDINGS: dict[str, Callable[[Tensor], BlockQuantized]] = {
    "int8": _nearest,
    "int4_minimum": _least_squares,
    "fp8": _eight_bit_floats,
    "mxfp4": _four_bit_floats,
    "nf4": _normal_quantiles,
}
"""By kind what rounds float32 groups [N, K / group, group]."""
