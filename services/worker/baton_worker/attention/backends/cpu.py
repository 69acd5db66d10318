"""Paged attention in C++: decode rows and prompt chunks in one call, pages read in place.

A token's result is the same to the last bit whatever else is in the batch, however its prompt is
cut into chunks, on any number of threads; `kernels/cpu/attention.cpp` describes how. The twin in
torch is `attention.reference`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec, unknown
from baton_worker.attention.backend import fits
from baton_worker.attention.tree_mask import TreeMask
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel
from baton_worker.kernels.kv_codes import row_width
from baton_worker.kernels.page_layout import EVERY, strides

_DTYPES = (torch.bfloat16, torch.float32)
_UNDERSTOOD = {
    *("softcap", "slopes", "chunk", "sinks", "token_sinks"),
    *("codes", "value_dim", "partial", "tree", "spans", "latent", "most_keys"),
}
"""Features that its kernels support, see `unknown`."""


class _Call(ctypes.Structure):
    """`baton::Call`."""

    _fields_ = (
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
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
        ("ranges", ctypes.c_void_p),
        ("ancestors", ctypes.c_void_p),
        ("depths", ctypes.c_void_p),
        ("last_keys", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """C structures, and references that keep the memory behind their pointers alive."""

    call: _Call
    step: _Batch
    width: int
    value_offset: int | None
    kept: tuple[AttentionBatch, Tensor | None]


class CpuBackend:
    """The kernels of `kernels/cpu/attention.cpp`.

    Args:
        kernels: a build of them; None takes the one for this machine.
    """

    layouts = EVERY
    capture_blocker = None
    launch_blocker = None

    def __init__(self, kernels: ctypes.CDLL | None = None) -> None:
        self._kernels = kernels
        self._attend: Kernel | None = None

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses other devices, dtypes of neither two nor four bytes, and unsupported features."""
        if call.device.type != "cpu":
            return f"it does not run on {call.device.type}"
        if call.dtype not in _DTYPES:
            return f"pages of {call.dtype} need another kernel"
        if reason := unknown(call, _UNDERSTOOD):
            return reason
        if call.latent and call.codes:
            return f"it reads no {call.codes} latents"
        kernels = library("attention") if self._kernels is None else self._kernels
        if kernels is None:
            return "its kernels cannot be built here"
        self._attend = Kernel(kernels.baton_attend, 11, rows=10)
        return None

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> _Plan:
        """Collect pointers; the kernel divides the work itself."""
        assert fits(batch, call)
        ranges = None if batch.ranges is None else torch.tensor(batch.ranges, dtype=torch.int32)
        step = _Batch(
            len(batch.query_lens),
            batch.page_size,
            batch.block_table.shape[1],
            batch.query_start_loc.data_ptr(),
            batch.seq_lens.data_ptr(),
            batch.block_table.data_ptr(),
            None if ranges is None else ranges.data_ptr(),
            *_pointers(batch.trees),
            None if batch.last_keys is None else batch.last_keys.data_ptr(),
        )
        return _Plan(_call(call), step, call.width, _value_offset(call), (batch, ranges))

    def forward(
        self,
        plan: _Plan,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`."""
        assert self._attend is not None and query.stride()[1:] == (query.shape[2], 1)
        assert lse is None or (lse.dtype is torch.float32 and lse.is_contiguous())
        if sinks is not None:
            sinks = sinks.to(torch.float32).contiguous()
        out = query.new_empty((query.shape[0], query.shape[1] * plan.width))
        self._attend(
            ctypes.addressof(plan.call),
            ctypes.addressof(plan.step),
            query,
            query.stride(0),
            pages,
            ctypes.addressof(strides(pages, plan.value_offset)),
            sinks,
            0 if sinks is None or sinks.ndim == 1 else sinks.stride(0),
            out,
            lse,
            plan.step.rows,
        )
        return out


def _value_offset(call: AttentionSpec) -> int | None:
    """Offset from a key to its value where both share a plane."""
    if call.latent:
        return 0
    return None if call.value_dim is None else row_width(call.head_dim, call.codes)


def _pointers(trees: TreeMask | None) -> tuple[int | None, int | None]:
    """Pointers to the ancestors and depths of a tree."""
    if trees is None:
        return None, None
    return trees.ancestors.data_ptr(), trees.depths.data_ptr()


def _call(call: AttentionSpec) -> _Call:
    slopes = None
    if call.slopes is not None:
        slopes = (ctypes.c_float * len(call.slopes))(*call.slopes)
    return _Call(
        call.num_heads,
        call.num_kv_heads,
        call.head_dim,
        call.width,
        call.window or 0,
        call.chunk or 0,
        call.scale,
        call.softcap or 0.0,
        slopes,
        call.dtype.itemsize,
        call.codes.number if call.codes else 0,
    )
