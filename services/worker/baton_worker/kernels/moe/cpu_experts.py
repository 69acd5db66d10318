"""The experts of a layer as one call of a kernel in C++."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.activation import numbered
from baton_worker.kernels.cpu.call_recorder import Kernel
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import LinearKernel
from baton_worker.kernels.moe.experts import Experts


class _Experts(ctypes.Structure):
    """`baton::Experts` of experts.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate_up", "down")),
        *((name, ctypes.c_int64) for name in ("num", "hidden", "intermediate", "bytes")),
        ("weigh_input", ctypes.c_int64),
        ("gate", ctypes.c_void_p),
    )


class _Gate(ctypes.Structure):
    """`baton::Gate` of experts.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("activation", "gated", "limit_first")),
        *((name, ctypes.c_float) for name in ("scale", "limit", "up_offset")),
    )

    @classmethod
    def of(cls, expert: spec.Glu | spec.Mlp) -> _Gate:
        """What stands between the products of such an expert."""
        number = numbered(expert.activation)
        if isinstance(expert, spec.Mlp):
            return cls(activation=number)
        limit = math.inf if expert.limit is None else expert.limit
        shape = number, True, expert.limit_first, expert.gate_scale, limit, expert.up_offset
        return cls(*shape)


class CpuExperts:
    """Dispatch, both products of every expert that has visits, and the weighted sum.

    A token's result has the same bits whatever the other tokens are.

    Args:
        gate_up: the kernels of all experts, which `refuses` does not refuse.
        down: those of their second products.
        experts: for all but the weights.
    """

    def __init__(
        self, gate_up: Sequence[LinearKernel], down: Sequence[LinearKernel], experts: Experts
    ) -> None:
        self._products = gate_up, down
        self._entries = np.zeros((2, len(down), 2), np.int64)
        first = down[0]
        assert isinstance(first, CpuLinear), "refuses() was not asked"
        self._dtype, self._hidden = first.out_dtype, first.columns
        self._experts = _Experts(
            *(table.ctypes.data for table in self._entries),
            num=len(down),
            hidden=first.columns,
            intermediate=first.depth,
            bytes=first.out_dtype.itemsize,
            weigh_input=experts.weigh_input,
        )
        if not gate_up[0].applies_gate:
            assert experts.expert is not None
            self._gate = _Gate.of(experts.expert)
            self._experts.gate = ctypes.addressof(self._gate)
        self.link()
        kernels = library("experts")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_experts, 7, tokens=4)

    @classmethod
    def refuses(
        cls, gate_up: Sequence[LinearKernel], down: Sequence[LinearKernel], experts: Experts
    ) -> str | None:
        """Why these products cannot be made in one call, as half a sentence; None if they can."""
        if not all(isinstance(kernel, CpuLinear) for kernel in (*gate_up, *down)):
            return "a product is not that of the CPU kernels"
        applied = {kernel.applies_gate for kernel in gate_up}
        expert = experts.expert
        if applied != {True} and (
            applied != {False} or expert is None or numbered(expert.activation) is None
        ):
            return "the gate is left to torch"
        if library("experts") is None:
            return "the CPU kernels could not be built"
        return None

    def link(self) -> None:
        """Take the kernels anew, some of which have been replaced."""
        for table, kernels in zip(self._entries, self._products, strict=True):
            for entry, kernel in zip(table, kernels, strict=True):
                assert isinstance(kernel, CpuLinear)
                entry[:] = kernel.entry

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `kernels.moe.experts.ExpertKernel`."""
        assert x.dtype is self._dtype and x.shape[1] == self._hidden, "x does not fit the experts"
        assert experts.shape == weights.shape and weights.dtype is torch.float32
        x, experts, weights = x.contiguous(), experts.contiguous(), weights.contiguous()
        out = torch.empty_like(x)
        address = ctypes.addressof(self._experts)
        self._run(address, x, experts, weights, *experts.shape, out)
        return out


def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor | None:
    """See `kernels.moe.dispatch.weighted_sum`, with the bits of `CpuExperts`; None where that does
    not run."""
    fits = rows.dtype in (torch.float32, torch.bfloat16) and weights.dtype is torch.float32
    if rows.device.type != "cpu" or not fits or (run := _weighted_sum()) is None:
        return None
    rows, weights = rows.contiguous(), weights.contiguous()
    tokens, slots, size = rows.shape
    out = rows.new_empty(tokens, size)
    run(rows.itemsize, rows, weights, tokens, slots, size, out)
    return out


@cache
def _weighted_sum() -> Kernel | None:
    kernels = library("experts")
    return None if kernels is None else Kernel(kernels.baton_weighted_sum, 7, tokens=3)
