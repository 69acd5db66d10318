"""Gates of which the largest count, in C++."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.activation import numbered
from baton_worker.kernels.cpu.call_recorder import Kernel, structure

_DTYPES = (torch.float32, torch.bfloat16)


class _SparseGate(ctypes.Structure):
    """`baton::SparseGate` of altup.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("activation", "size", "gate_stride", "up_stride")),
        ("bytes", ctypes.c_int64),
        ("deviations", ctypes.c_float),
    )


def sparse_gate(activation: str, deviations: float, gate: Tensor, up: Tensor) -> Tensor | None:
    """The activation of what gates [T, size] have above their mean plus so many standard
    deviations, times up [T, size], rounded once. None if there is no kernel for it."""
    if gate.device.type != "cpu" or gate.dtype not in _DTYPES or (run := _kernel()) is None:
        return None
    if (number := numbered(activation)) is None:
        return None
    assert up.dtype is gate.dtype and up.shape == gate.shape
    assert gate.stride(1) == up.stride(1) == 1
    strides = gate.stride(0), up.stride(0)
    how = structure(_SparseGate, number, gate.shape[1], *strides, gate.itemsize, deviations)
    y = gate.new_empty(gate.shape)
    run(how, gate, up, len(gate), y)
    return y


@cache
def _kernel() -> Kernel | None:
    kernels = library("altup")
    return None if kernels is None else Kernel(kernels.baton_sparse_gate, 5, tokens=3)
