"""Paged attention in C++: decode rows and prompt chunks in one call, pages read in place.

A token's result is the same to the last bit whatever else is in the batch, however its prompt is
cut into chunks, on any number of threads; how that is achieved is told in
`kernels/cpu/attention.cpp`. The twin in torch is `attention.reference`.
"""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baton_worker.attention.base import AttentionBatch, AttentionCall
from baton_worker.kernels.cpu import library

_DTYPES = (torch.bfloat16, torch.float32)
_UNDERSTOOD = {
    *("num_heads", "num_kv_heads", "head_dim", "scale", "window", "dtype", "device"),
    *("softcap", "slopes", "chunk", "sinks", "token_sinks", "codes"),
}
"""Fields of a call that the kernel computes; any other must be at its default."""


class _Call(ctypes.Structure):
    """`baton::Call`."""

    _fields_ = (
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("chunk", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("slopes", ctypes.POINTER(ctypes.c_float)),
        ("bytes", ctypes.c_int32),
        ("codes", ctypes.c_int32),
    )


class _Batch(ctypes.Structure):
    """`baton::Batch`."""

    _fields_ = (
        ("rows", ctypes.c_int32),
        ("page_size", ctypes.c_int32),
        ("table_width", ctypes.c_int32),
        ("query_starts", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("page_table", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """Structures of C and what keeps the memory behind their pointers."""

    call: _Call
    step: _Batch
    batch: AttentionBatch


class CpuBackend:
    """The kernels of `kernels/cpu/attention.cpp`.

    Args:
        kernels: a build of them; None takes the one for this machine.
    """

    def __init__(self, kernels: ctypes.CDLL | None = None) -> None:
        self._given = kernels
        self._attend: Any = None

    def refuses(self, call: AttentionCall) -> str | None:
        """What is not on a CPU, not in two or four bytes, or not understood."""
        if call.device.type != "cpu":
            return f"it does not run on {call.device.type}"
        if call.dtype not in _DTYPES:
            return f"pages of {call.dtype} need another kernel"
        if strange := _strange(call):
            return f"it does not know {', '.join(strange)}"
        kernels = library("attention") if self._given is None else self._given
        if kernels is None:
            return "its kernels cannot be built here"
        self._attend = kernels.baton_attend
        pointer, stride = ctypes.c_void_p, ctypes.c_int64
        inputs = (pointer, stride, pointer, pointer, stride)
        self._attend.argtypes = (pointer, pointer, *inputs, pointer)
        self._attend.restype = None
        return None

    def plan(self, batch: AttentionBatch, call: AttentionCall) -> _Plan:
        """Pointers; the work is divided inside the call."""
        step = _Batch(
            len(batch.counts),
            batch.page_size,
            batch.page_table.shape[1],
            batch.query_starts.data_ptr(),
            batch.lengths.data_ptr(),
            batch.page_table.data_ptr(),
        )
        return _Plan(_call(call), step, batch)

    def forward(
        self, plan: _Plan, query: Tensor, pages: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """See `Backend.forward`."""
        assert self._attend is not None and query.stride()[1:] == (query.shape[2], 1)
        if sinks is not None:
            sinks = sinks.to(torch.float32).contiguous()
        out = query.new_empty((query.shape[0], query.shape[1] * query.shape[2]))
        self._attend(
            ctypes.byref(plan.call),
            ctypes.byref(plan.step),
            query.data_ptr(),
            query.stride(0),
            pages.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
            0 if sinks is None or sinks.ndim == 1 else sinks.stride(0),
            out.data_ptr(),
        )
        return out


def _strange(call: AttentionCall) -> list[str]:
    """Fields that ask for something which is not understood."""
    fields = [field for field in dataclasses.fields(call) if field.name not in _UNDERSTOOD]
    return [field.name for field in fields if getattr(call, field.name) != field.default]


def _call(call: AttentionCall) -> _Call:
    slopes = None
    if call.slopes is not None:
        slopes = (ctypes.c_float * len(call.slopes))(*call.slopes)
    return _Call(
        call.num_heads,
        call.num_kv_heads,
        call.head_dim,
        call.window or 0,
        call.chunk or 0,
        call.scale,
        call.softcap or 0.0,
        slopes,
        call.dtype.itemsize,
        call.codes.number if call.codes else 0,
    )
