"""Streams of Gemma 3n in C++."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel, structure

_DTYPES = (torch.float32, torch.bfloat16)


class _Streams(ctypes.Structure):
    """`baton::Streams` of altup.cpp."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("count", "active", "hidden", "bytes"))


class _Likeness(ctypes.Structure):
    """`baton::Likeness` of altup.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("hidden", "x_stride", "other_stride", "stride")),
        ("bytes", ctypes.c_int64),
        ("least", ctypes.c_float),
    )


class CpuStreams:
    """What is made of the streams of each token by itself, rounded once.

    Args:
        count: number of streams.
        active: the stream that layers see.
        hidden: channels of a stream.
        dtype: of everything, float32 or bfloat16.
    """

    def __init__(self, count: int, active: int, hidden: int, dtype: torch.dtype) -> None:
        self._shape, self._dtype = (count, hidden), dtype
        self._how = structure(_Streams, count, active, hidden, dtype.itemsize)
        kernels = library("altup")
        assert kernels is not None, "refuses() was not asked"
        self._predict = Kernel(kernels.baton_altup_predict, 5, tokens=3)
        self._correct = Kernel(kernels.baton_altup_correct, 6, tokens=4)
        self._extend = Kernel(kernels.baton_altup_extend, 4, tokens=2)
        self._average = Kernel(kernels.baton_altup_average, 4, tokens=2)
        self._liken = Kernel(kernels.baton_altup_liken, 5, tokens=3)

    @classmethod
    def refuses(cls, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why there is no kernel for such streams, as half a sentence; None if there is one."""
        if device.type != "cpu":
            return "they are not on the CPU"
        if dtype not in _DTYPES:
            return f"the CPU kernels have no {dtype}"
        return "the CPU kernels could not be built" if library("altup") is None else None

    def predict(self, streams: Tensor, weights: Tensor) -> Tensor:
        """Each stream plus a sum of all, of weights [T, count * count], a stream's side by side:
        [T, count, hidden] to the same."""
        y = torch.empty_like(streams)
        self._predict(self._how, self._whole(streams), self._row(weights), len(streams), y)
        return y

    def correct(self, predicted: Tensor, activated: Tensor, shares: Tensor) -> Tensor:
        """Each stream of [T, count, hidden] plus (1 + its share, [T, count]) times what
        `activated`, [T, hidden], differs by from the active one."""
        y = torch.empty_like(predicted)
        given = self._whole(predicted), self._row(activated), self._row(shares)
        self._correct(self._how, *given, len(predicted), y)
        return y

    def extend_(self, streams: Tensor, more: Tensor) -> None:
        """Add [T, hidden] to all streams but the first, in place."""
        self._extend(self._how, self._row(more), len(streams), self._whole(streams))

    def average(self, streams: Tensor) -> Tensor:
        """The mean of the streams: [T, count, hidden] to [T, hidden]."""
        y = streams.new_empty((len(streams), self._shape[1]))
        self._average(self._how, self._whole(streams), len(streams), y)
        return y

    def liken(self, x: Tensor, other: Tensor, least: float, out: Tensor) -> None:
        """Write x [T, hidden] with the root mean square of the rows of `other`, [T, hidden], to
        `out`; its own mean square counts as `least` if it is smaller. Rows have any strides."""
        for rows in (x, other, out):
            assert rows.dtype is self._dtype and rows.shape == (len(x), self._shape[1])
            assert rows.stride(1) == 1
        strides = x.stride(0), other.stride(0), out.stride(0)
        how = structure(_Likeness, self._shape[1], *strides, x.itemsize, least)
        self._liken(how, x, other, len(x), out)

    def _whole(self, streams: Tensor) -> Tensor:
        assert streams.shape[1:] == self._shape and streams.dtype is self._dtype
        assert streams.is_contiguous()
        return streams

    def _row(self, x: Tensor) -> Tensor:
        assert x.is_contiguous() and x.dtype is self._dtype and x.ndim == 2
        return x
