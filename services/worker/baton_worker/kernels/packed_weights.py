"""Weights of few bits in the layout of `kernels.triton.grouped`, made once when they are loaded.

A tile is `TILE` channels of all columns. Word j of a column's tile has one code of each of
32 / bits runs of channels, from its lowest bits on:

    channel of code i of word j = i * words + j        words = TILE * bits / 32

So a program reads each word once, next to those of other columns, and code i of all words makes the
operand of a product with channels i * words ... of the inputs: nothing is moved between threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.block_kinds import E2M1
from baton_worker.kernels.fp8 import Fp8Weight, check_numbers
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.mxfp4 import Mxfp4Weight
from baton_worker.kernels.nvfp4 import Nvfp4Weight
from baton_worker.kernels.quantized_weights import nibbles
from baton_worker.kernels.weight import QuantizedWeight

TILE = 128
PACKABLE = (GptqWeight, Mxfp4Weight, Nvfp4Weight, Fp8Weight)
"""Classes of weights that have a layout."""
_EXPONENT_BIAS = 127
_E8M0, _E4M3 = "e8m0", "e4m3"


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Weights [E, N, K] of one format: those of experts, or one of a linear layer."""

    values: str
    """Type of the codes: "integer", or "e2m1" and "e4m3" floats."""
    scale_type: str
    """Type of the scales: "float", or "e8m0" and "e4m3" by their bits."""
    bits: int
    group: int
    """Channels that share a scale."""
    depth: int
    """K."""
    words: Tensor
    """int32 [E, ceil(K / TILE) * TILE * bits / 32, N]."""
    scales: Tensor
    """float [E, G, N], or uint8."""
    zeros: Tensor | None = None
    """uint8 or int16 [E, G, N]: the code of an integer that stands for 0."""
    factors: Tensor | None = None
    """float32 [E, N]: what all numbers of a column are multiplied by."""
    order: Tensor | None = None
    """int64 [K]: the channel that is packed at each place; None where they are in order."""

    @property
    def shape(self) -> torch.Size:
        """[E, N, K]."""
        return torch.Size((len(self.words), self.words.shape[2], self.depth))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(part.nbytes for part in self.tensors().values())

    def to(self, device: torch.device) -> PackedWeights:
        """On another device."""
        return self._with({name: part.to(device) for name, part in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: part for name, part in parts.items() if isinstance(part, Tensor)}

    def _with(self, tensors: dict[str, Tensor]) -> PackedWeights:
        current: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return PackedWeights(**current | tensors)

    def dequantise(self) -> Tensor:
        """float32 [E, N, K]: the twin of the kernel's reading."""
        codes = unpack(self.words, self.bits)[..., : self.depth]
        numbers = _VALUES[self.values](codes)
        group = torch.arange(self.depth, device=codes.device) // self.group
        if self.zeros is not None:
            numbers = numbers - self.zeros.mT.float()[..., group]
        scales = _SCALES[self.scale_type](self.scales)
        scales = scales if self.factors is None else scales * self.factors[:, None]
        numbers = numbers * scales.mT[..., group]
        if self.order is None:
            return numbers
        return torch.empty_like(numbers).index_copy_(2, self.order, numbers)


def _powers(exponents: Tensor) -> Tensor:
    ones = torch.ones_like(exponents, dtype=torch.float32)
    return torch.ldexp(ones, exponents.int() - _EXPONENT_BIAS)


_VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "integer": lambda codes: codes.float(),
    "e2m1": lambda codes: torch.tensor(E2M1, device=codes.device)[codes.int()],
    "e4m3": lambda codes: codes.view(torch.float8_e4m3fn).float(),
}
_SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda scales: scales.float(),
    _E8M0: lambda scales: torch.ldexp(
        torch.ones_like(scales, dtype=torch.float), scales.int() - 127
    ),
    _E4M3: lambda scales: scales.view(torch.float8_e4m3fn).float(),
}


def words_of(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes [N, K] to int32 words [ceil(K / TILE) * TILE * bits / 32, N]; codes of 0 fill the
    last tile."""
    rows = len(codes)
    padded = F.pad(codes, (0, -codes.shape[1] % TILE)).view(rows, -1, 32 // bits, TILE * bits // 32)
    shape = padded.shape[1], padded.shape[3], rows
    words = torch.zeros(shape, dtype=torch.int32, device=codes.device)
    for i in range(32 // bits):
        words |= padded[:, :, i].permute(1, 2, 0).to(torch.int32) << (i * bits)
    return words.flatten(0, 1)


def unpack(words: Tensor, bits: int) -> Tensor:
    """The inverse: int32 [E, W, N] to uint8 codes [E, N, K], up to a whole tile."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    tiles = torch.unflatten(words, 1, (-1, TILE * bits // 32)).permute(0, 3, 1, 2)
    codes = (tiles[:, :, :, None] >> shifts[:, None]) & ((1 << bits) - 1)
    return codes.flatten(2).to(torch.uint8)


def refuses(weight: QuantizedWeight) -> str | None:
    """Why a weight cannot be packed, as half a sentence; None if it can."""
    if isinstance(weight, GptqWeight):
        return _refuses_integers(weight)
    if isinstance(weight, Mxfp4Weight):
        return None
    if isinstance(weight, Nvfp4Weight):
        return _refuses_group(weight.column_multiple, 4, weight.shape[1])
    if isinstance(weight, Fp8Weight):
        depth, group = weight.shape[1], weight.inputs.group
        return _refuses_group(weight.block[1], 8, depth) or _refuses_group(group or depth, 8, depth)
    return "there is no layout for it"


def _refuses_group(group: int, bits: int, depth: int) -> str | None:
    fits = group % TILE == 0 or (TILE % group == 0 and group % (TILE * bits // 32) == 0)
    return None if fits or group >= depth else f"its groups of {group} do not fit tiles of {TILE}"


def _refuses_integers(weight: GptqWeight) -> str | None:
    if weight.bits not in (4, 8):
        return f"words of {weight.bits} bits have another kernel"
    _, sizes = torch.unique(weight.groups, return_counts=True)
    if int(sizes.amin()) != int(sizes.amax()):
        return "its groups are of several sizes"
    return _refuses_group(int(sizes[0]), weight.bits, weight.shape[1])


def pack(parts: Sequence[QuantizedWeight], device: torch.device) -> PackedWeights:
    """The rows of several weights, none refused, as one weight [1, N, K] on a device.

    Raises:
        ValueError: they are of several formats, see `alike`.
    """
    if any(not alike(parts[0], part) for part in parts):
        raise ValueError("weights of several formats have no common layout")
    return _side_by_side([_PACKED[type(part)](part, device) for part in parts])


def stacked(experts: Iterable[PackedWeights], count: int) -> PackedWeights:
    """Weights [1, N, K] of one format as [E, N, K]; each may go when the next is made."""
    whole: dict[str, Tensor] = {}
    for expert, weights in enumerate(experts):
        parts = weights.tensors()
        parts.pop("order", None)
        whole = whole or {n: part.new_empty(count, *part.shape[1:]) for n, part in parts.items()}
        for name, part in parts.items():
            if part.dtype.itemsize > whole[name].dtype.itemsize:  # Zero points beyond a byte.
                whole[name] = whole[name].to(part.dtype)
            whole[name][expert] = part[0]
    return weights._with(whole)


def alike(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    """Whether the rows of two weights, none refused, make one packed weight."""
    return type(one) is type(other) and _FORMAT[type(one)](one) == _FORMAT[type(other)](other)


def _side_by_side(parts: Sequence[PackedWeights]) -> PackedWeights:
    """The columns of weights of one format."""
    names = parts[0].tensors().keys() - {"order"}
    columns = {name: [part.tensors()[name] for part in parts] for name in names}
    if "zeros" in columns and len({zeros.dtype for zeros in columns["zeros"]}) > 1:
        columns["zeros"] = [zeros.to(torch.int16) for zeros in columns["zeros"]]
    return parts[0]._with({name: torch.cat(some, -1) for name, some in columns.items()})


def _integers(weight: GptqWeight, device: torch.device) -> PackedWeights:
    used, groups = torch.unique(weight.groups, return_inverse=True)
    order = None if bool((groups.diff() >= 0).all()) else groups.argsort(stable=True).to(device)
    scales, zeros = weight.scales[used], weight.zeros[used]
    narrow = int(zeros.amin()) >= 0 and int(zeros.amax()) < 256
    codes = weight.to(device).codes()
    return PackedWeights(
        *("integer", "float", weight.bits, weight.shape[1] // len(used), weight.shape[1]),
        words_of(codes if order is None else codes[:, order], weight.bits)[None],
        scales[None].to(device),
        zeros=zeros.to(torch.uint8 if narrow else torch.int16)[None].to(device),
        order=order,
    )


def _mxfp4(weight: Mxfp4Weight, device: torch.device) -> PackedWeights:
    words = words_of(nibbles(weight.codes.to(device)).flatten(1), 4)[None]
    scales = weight.scales.T.contiguous()[None].to(device)
    return PackedWeights("e2m1", _E8M0, 4, 32, weight.shape[1], words, scales)


def _nvfp4(weight: Nvfp4Weight, device: torch.device) -> PackedWeights:
    check_numbers(weight.scales)
    words = words_of(nibbles(weight.codes.to(device)), 4)[None]
    scales = weight.scales.view(torch.uint8).T.contiguous()[None].to(device)
    factors = weight.factor.float().expand(1, len(weight.codes)).contiguous().to(device)
    sizes = 4, weight.column_multiple, weight.shape[1]
    return PackedWeights("e2m1", _E4M3, *sizes, words, scales, factors=factors)


def _fp8(weight: Fp8Weight, device: torch.device) -> PackedWeights:
    check_numbers(weight.codes)
    rows, depth = weight.shape
    words = words_of(weight.codes.view(torch.uint8).to(device), 8)[None]
    scales = weight.scales.to(device).float().repeat_interleave(weight.block[0], 0)[:rows]
    group = min(weight.block[1], depth)
    return PackedWeights("e4m3", "float", 8, group, depth, words, scales.T.contiguous()[None])


_PACKED: dict[type, Callable[[Any, torch.device], PackedWeights]] = {
    GptqWeight: _integers,
    Mxfp4Weight: _mxfp4,
    Nvfp4Weight: _nvfp4,
    Fp8Weight: _fp8,
}


def _integer_format(weight: GptqWeight) -> tuple[Any, ...]:
    return weight.bits, weight.scales.dtype, weight.groups.cpu().numpy().tobytes()


def _fp8_format(weight: Fp8Weight) -> tuple[Any, ...]:
    return min(weight.block[1], weight.shape[1]), weight.shape[1], weight.inputs.kind


_FORMAT: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    GptqWeight: _integer_format,
    Mxfp4Weight: lambda weight: (weight.shape[1],),
    Nvfp4Weight: lambda weight: (weight.shape[1], weight.column_multiple),
    Fp8Weight: _fp8_format,
}
