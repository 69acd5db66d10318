"""Causal depthwise convolution whose past inputs are stored in pages.

    row of a token    | channels, as they were | ... | channels from `first` on, convolved | tail |

The tail follows the channels in a token's row and is copied unchanged. Sums are computed in
float32, from the token itself backwards, rounded, then activated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from baton_worker.kernels import triton
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel as CpuKernel
from baton_worker.kernels.cpu.call_recorder import structure
from baton_worker.kernels.kv_pages import scatter


class Weights(NamedTuple):
    """Weights of a depthwise convolution, float32."""

    taps: Tensor
    """[taps, channels], the last tap for the token itself."""
    bias: Tensor | None
    """[channels]"""


@dataclass(frozen=True, slots=True)
class Places:
    """Layout of a token's row after its channels."""

    first: int
    """The channels from this one on are kept convolved as well: as many as there are, for none."""
    tail: int = 0
    """As many channels behind those are stored unchanged."""
    at: int = 0
    """Index in the row at which both begin."""


class Before(NamedTuple):
    """Slots of new tokens and of their predecessors."""

    slots: Tensor
    """int64 [T], of the tokens themselves."""
    earlier: Tensor
    """int64 [taps - 1, T], of the token before each, of the one before that, ..."""
    missing: Tensor | None
    """bool [taps - 1, T]: the sequence begins later than that; None where all are there."""


class Kernel(Protocol):
    """Writes a step's tokens to their pages and convolves them."""

    def __call__(self, x: Tensor, before: Before, pages: Tensor, *tail: Tensor) -> Tensor:
        """x [T, channels and the begin of the tail] and the other parts of the tail [T, any], any
        row strides, and pages [num_pages, page_size, 1, 1, width] to [T, channels]."""
        ...


@dataclass(frozen=True, slots=True)
class Activation:
    """Activation applied to the sums."""

    function: Callable[[Tensor], Tensor] | None = None
    silu: bool = False
    """Whether that is what `function` does."""

    @property
    def has_kernel(self) -> bool:
        """Whether kernels apply it."""
        return self.function is None or self.silu


def choose(weights: Weights, places: Places, activation: Activation, dtype: torch.dtype) -> Kernel:
    """The kernel for pages of this dtype, in C++ or in Triton, if available; else the torch
    twin."""
    if CpuConvolution.refuses(weights, activation, dtype) is None:
        return CpuConvolution(weights, places, activation, dtype)
    if triton.runs(weights.taps.device) and activation.has_kernel:
        from baton_worker.kernels.triton.recurrent.convolution import (
            TritonConvolution,
        )  # Needs triton.

        return TritonConvolution(weights, places, activation)
    return PlainConvolution(weights, places, activation)


def joined(x: Tensor, tail: tuple[Tensor, ...]) -> Tensor:
    """Whole rows of the arguments of a `Kernel`."""
    return torch.cat((x, *tail), dim=1) if tail else x


class PlainConvolution:
    """The torch twin, on any device."""

    def __init__(self, weights: Weights, places: Places, activation: Activation) -> None:
        self._weights, self._places, self._activation = weights, places, activation

    def __call__(self, x: Tensor, before: Before, pages: Tensor, *tail: Tensor) -> Tensor:
        """See `Kernel`."""
        taps, bias = self._weights
        inputs, kept = joined(x, tail).tensor_split((taps.shape[1],), dim=1)
        raw = pages[..., : taps.shape[1]]
        scatter(inputs[:, None, None], before.slots, raw)
        total = inputs.float() * taps[-1]
        for number, slots in enumerate(before.earlier):
            read = _rows(raw, slots).float()
            if before.missing is not None:
                read.masked_fill_(before.missing[number, :, None], 0)
            total += read * taps[-2 - number]
        mixed = (total if bias is None else total + bias).to(x.dtype)
        if self._activation.function is not None:
            mixed = self._activation.function(mixed)
        stored = torch.cat((mixed[:, self._places.first :], kept), dim=1)
        if stored.shape[1]:
            at = self._places.at
            scatter(stored[:, None, None], before.slots, pages[..., at : at + stored.shape[1]])
        return mixed


def _rows(pages: Tensor, slots: Tensor) -> Tensor:
    """Rows of slots int64 [T] in pages [num_pages, page_size, 1, 1, channels]: [T, channels]."""
    if pages.is_contiguous():
        return pages.view(-1, pages.shape[-1]).index_select(0, slots)
    return pages[slots // pages.shape[1], slots % pages.shape[1], 0, 0]


_MORE = 2
"""Parts of a tail that do not lie behind the channels; mirrored in convolution.cpp."""


class _Convolution(ctypes.Structure):
    """`baton::Convolution` of convolution.cpp."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("pages", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("page", "token", "page_size", "channels", "taps")),
        *((name, ctypes.c_int64) for name in ("tail", "first", "at", "bytes", "silu", "stride")),
        *((f"width_{part}", ctypes.c_int64) for part in range(_MORE)),
        *((f"stride_{part}", ctypes.c_int64) for part in range(_MORE)),
    )


class CpuConvolution:
    """In C++: a token's inputs are written, read and kept in two passes over them."""

    def __init__(
        self, weights: Weights, places: Places, activation: Activation, dtype: torch.dtype
    ) -> None:
        self._taps = weights.taps.contiguous()
        self._bias = None if weights.bias is None else weights.bias.contiguous()
        self._places, self._silu, self._dtype = places, activation.silu, dtype
        kernels = library("convolution")
        assert kernels is not None, "refuses() was not asked"
        self._run = CpuKernel(kernels.baton_convolve, 9, tokens=1)

    @classmethod
    def refuses(cls, weights: Weights, activation: Activation, dtype: torch.dtype) -> str | None:
        """Why the kernel cannot compute this, as half a sentence; None if it can."""
        if weights.taps.device.type != "cpu":
            return "it is not on the CPU"
        if dtype not in (torch.float32, torch.bfloat16):
            return f"the CPU kernels have no {dtype}"
        if not activation.has_kernel:
            return "its activation is none that they have"
        return "the CPU kernels could not be built" if library("convolution") is None else None

    def __call__(self, x: Tensor, before: Before, pages: Tensor, *tail: Tensor) -> Tensor:
        """See `Kernel`; the tail has at most `_MORE` parts beside x."""
        (taps, channels), places = self._taps.shape, self._places
        x, *more = (part if part.stride(1) == 1 else part.contiguous() for part in (x, *tail))
        widths, absent = [part.shape[1] for part in more], _MORE - len(more)
        assert all(part.dtype is pages.dtype is self._dtype for part in (x, *more))
        assert x.shape[1] + sum(widths) == channels + places.tail and absent >= 0
        assert pages.shape[-1] >= max(channels, places.at + channels + places.tail - places.first)
        how = structure(
            _Convolution,
            *(self._taps.data_ptr(), None if self._bias is None else self._bias.data_ptr()),
            *(pages.data_ptr(), pages.stride(0), pages.stride(1), pages.shape[1]),
            *(channels, taps, x.shape[1] - channels, places.first, places.at),
            *(self._dtype.itemsize, self._silu, x.stride(0)),
            *(*widths, *[0] * absent, *(part.stride(0) for part in more), *[0] * absent),
        )
        # By token, as the pages of a step are found on a CPU.
        earlier = before.earlier.T.contiguous()
        missing = None if before.missing is None else before.missing.T.contiguous()
        out = x.new_empty((len(x), channels))
        parts = (*more, *[None] * absent)
        self._run(how, len(x), x, before.slots, earlier, missing, *parts, out)
        return out


class _Rows(ctypes.Structure):
    """`baton::Rows` of convolution.cpp."""

    _fields_ = (
        ("pages", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("page", "token", "page_size")),
        *((f"width_{part}", ctypes.c_int64) for part in range(_MORE)),
        *((f"stride_{part}", ctypes.c_int64) for part in range(_MORE)),
    )


def put(pages: Tensor, slots: Tensor, part: Tensor, other: Tensor) -> None:
    """Write two [T, any] side by side, of the dtype of the pages, to the first channels of pages
    [num_pages, page_size, 1, 1, width] at slots int64 [T]."""
    width, size = part.shape[1] + other.shape[1], pages.dtype.itemsize
    assert part.dtype is other.dtype is pages.dtype and width <= pages.shape[-1]
    if (run := _put_kernel() if pages.device.type == "cpu" else None) is None:
        scatter(torch.cat((part, other), dim=1)[:, None, None], slots, pages[..., :width])
        return
    part, other = (x if x.stride(1) == 1 else x.contiguous() for x in (part, other))
    how = structure(
        _Rows,
        *(pages.data_ptr(), pages.stride(0) * size, pages.stride(1) * size, pages.shape[1]),
        *(part.shape[1] * size, other.shape[1] * size),
        *(part.stride(0) * size, other.stride(0) * size),
    )
    run(how, len(slots), slots, part, other)


@cache
def _put_kernel() -> CpuKernel | None:
    kernels = library("convolution")
    return None if kernels is None else CpuKernel(kernels.baton_put_rows, 5, tokens=1)
