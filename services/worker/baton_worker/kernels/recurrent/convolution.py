"""Causal depthwise convolution whose past inputs are stored in pages.

    row of a token    | channels, as they were | ... | channels from `first` on, convolved | tail |

The tail follows the channels in a token's row and is copied unchanged. Sums are computed in
float32, from the token itself backwards, rounded, then activated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from baton_worker.kernels import triton
from baton_worker.kernels.cpu import library
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

    def __call__(self, x: Tensor, before: Before, pages: Tensor) -> Tensor:
        """x [T, channels + tail], any row stride, and pages [num_pages, page_size, 1, 1, width] to
        [T, channels]."""
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


class PlainConvolution:
    """The torch twin, on any device."""

    def __init__(self, weights: Weights, places: Places, activation: Activation) -> None:
        self._weights, self._places, self._activation = weights, places, activation

    def __call__(self, x: Tensor, before: Before, pages: Tensor) -> Tensor:
        """See `Kernel`."""
        taps, bias = self._weights
        inputs, tail = x.tensor_split((taps.shape[1],), dim=1)
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
        stored = torch.cat((mixed[:, self._places.first :], tail), dim=1)
        if stored.shape[1]:
            at = self._places.at
            scatter(stored[:, None, None], before.slots, pages[..., at : at + stored.shape[1]])
        return mixed


def _rows(pages: Tensor, slots: Tensor) -> Tensor:
    """Rows of slots int64 [T] in pages [num_pages, page_size, 1, 1, channels]: [T, channels]."""
    if pages.is_contiguous():
        return pages.view(-1, pages.shape[-1]).index_select(0, slots)
    return pages[slots // pages.shape[1], slots % pages.shape[1], 0, 0]


class _Convolution(ctypes.Structure):
    """`baton::Convolution` of convolution.cpp."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("pages", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("page", "token", "page_size", "channels", "taps")),
        *((name, ctypes.c_int64) for name in ("tail", "first", "at", "bytes", "silu")),
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
        self._run = kernels.baton_convolve
        pointers, number = (ctypes.c_void_p,), (ctypes.c_int64,)
        self._run.argtypes = pointers + number + pointers + number + 4 * pointers
        self._run.restype = None

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

    def __call__(self, x: Tensor, before: Before, pages: Tensor) -> Tensor:
        """See `Kernel`."""
        (taps, channels), places = self._taps.shape, self._places
        assert x.dtype is pages.dtype is self._dtype and x.shape[1] == channels + places.tail
        assert pages.shape[-1] >= max(channels, places.at + x.shape[1] - places.first)
        x = x if x.stride(1) == 1 else x.contiguous()
        out = x.new_empty((len(x), channels))
        how = _Convolution(
            *(self._taps.data_ptr(), None if self._bias is None else self._bias.data_ptr()),
            *(pages.data_ptr(), pages.stride(0), pages.stride(1), pages.shape[1]),
            *(channels, taps, places.tail, places.first, places.at),
            *(self._dtype.itemsize, self._silu),
        )
        slots, earlier, missing = before
        missing = None if missing is None else missing.contiguous()
        self._run(
            *(ctypes.addressof(how), len(x), x.data_ptr(), x.stride(0)),
            *(slots.data_ptr(), earlier.contiguous().data_ptr()),
            *(None if missing is None else missing.data_ptr(), out.data_ptr()),
        )
        return out
