"""Norms over the last axis, in C++ and in Triton. The twins are `F.rms_norm` and `F.layer_norm`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from baton_worker.kernels import triton
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel


class _Norm(ctypes.Structure):
    """`baton::Norm` of norm.cpp."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("size", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("centered", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class _GatedNorm(ctypes.Structure):
    """`baton::GatedNorm` of norm.cpp."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("size", "groups", "bytes", "gate_first")),
        *((name, ctypes.c_int64) for name in ("shared", "silu")),
        ("eps", ctypes.c_float),
    )


class CpuGatedNorm:
    """See `layers.gated_norm.GatedNorm`, whose twin this is.

    Args:
        weight: [size], or [size / groups] where it is one for all parts.
        groups: parts that are normed each by itself.
        silu: the activation of the gate; otherwise a sigmoid.
        dtype: of gates and of the result, float32 or bfloat16; x is float32.
    """

    def __init__(
        self,
        weight: Tensor,
        *,
        size: int,
        groups: int,
        eps: float,
        gate_first: bool,
        silu: bool,
        dtype: torch.dtype,
    ) -> None:
        self._weight, self._size, self._dtype = weight.detach().float(), size, dtype
        shared = len(weight) != size
        self._norm = _GatedNorm(
            self._weight.data_ptr(), size, groups, dtype.itemsize, gate_first, shared, silu, eps
        )
        kernels = library("norm")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_gated_norm, 6, tokens=4)

    @classmethod
    def refuses(cls, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why such a norm cannot be computed, as half a sentence; None if it can."""
        return CpuNorm.refuses(None, dtype, device)

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        """float32 [T, size] and a gate [T, size], any row stride, to [T, size]."""
        assert x.dtype is torch.float32 and gate.dtype is self._dtype and gate.shape == x.shape
        x, gate = x.contiguous(), gate if gate.stride(-1) == 1 else gate.contiguous()
        y = torch.empty(x.shape, dtype=self._dtype)
        self._run(ctypes.addressof(self._norm), x, gate, gate.stride(0), len(x), y)
        return y


class TritonGatedNorm:
    """The same on a GPU; see `kernels.triton.gated_norm`.

    Args:
        weight: as of `CpuGatedNorm`.
        how: the settings of `gated_norm`.
    """

    def __init__(self, weight: Tensor, eps: float, **how: Any) -> None:
        from baton_worker.kernels.triton.gated_norm import gated_norm

        self._run, self._given, self._how = gated_norm, (weight, eps), how

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        """float32 [T, size] and a gate [T, size], any row stride, to [T, size]."""
        return self._run(x, gate, *self._given, **self._how)


class CpuNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias, rounded once.

    A row's result has the same bits whatever the other rows are.

    Args:
        weight: [size], or None for ones.
        bias: [size], or None for zeros.
        size: of the normed axis.
        dtype: of x and of the result, float32 or bfloat16.
        centered: a layer norm; otherwise the mean is not subtracted (RMS norm).
    """

    def __init__(
        self,
        weight: Tensor | None,
        bias: Tensor | None,
        *,
        size: int,
        eps: float,
        dtype: torch.dtype,
        centered: bool,
    ) -> None:
        self._kept = tuple(None if x is None else x.detach().float() for x in (weight, bias))
        pointers = (None if x is None else x.data_ptr() for x in self._kept)
        self._size, self._dtype = size, dtype
        self._norm = _Norm(*pointers, size, dtype.itemsize, centered, eps)
        self._address = ctypes.addressof(self._norm)
        kernels = library("norm")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_norm, 5, tokens=2)

    @classmethod
    def refuses(cls, weight: Tensor | None, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why such a norm cannot be computed, as half a sentence; None if it can."""
        if device.type != "cpu":
            return "it is not on the CPU"
        if dtype not in (torch.float32, torch.bfloat16):
            return f"the CPU kernels have no {dtype}"
        if weight is not None and weight.ndim != 1:
            return "its weight differs from row to row"
        if library("norm") is None:
            return "the CPU kernels could not be built"
        return None

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[..., size] to the same shape, contiguous; plus a residual of that shape, after the norm
        was rounded."""
        assert x.dtype is self._dtype and x.shape[-1] == self._size, "x does not fit the norm"
        x = x.contiguous()
        if residual is not None:
            assert (residual.dtype, residual.shape) == (x.dtype, x.shape), "the residual differs"
            residual = residual.contiguous()
        y = torch.empty_like(x)
        self._run(self._address, x, x.numel() // self._size, residual, y)
        return y


class TritonNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias on a GPU, rounded once; see
    `kernels.triton.norm`. The arguments are those of `CpuNorm`."""

    def __init__(
        self, weight: Tensor | None, bias: Tensor | None, *, eps: float, centered: bool
    ) -> None:
        from baton_worker.kernels.triton.norm import norm

        self._weight, self._bias, self._eps, self._centered = weight, bias, eps, centered
        self._run = norm

    @classmethod
    def refuses(cls, weight: Tensor | None, device: torch.device) -> str | None:
        """Why such a norm cannot be computed, as half a sentence; None if it can."""
        if not triton.runs(device):
            return "it is not on a GPU with Triton"
        if weight is not None and weight.ndim != 1:
            return "its weight differs from row to row"
        return None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape, contiguous."""
        return self._norm(x, None)[0]

    def of_sum(self, x: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of x + more, rounded to their dtype, and that sum: [..., size] each."""
        return self._norm(x, more.contiguous())

    def _norm(self, x: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
        arguments = x, more, self._weight, self._bias, self._eps
        return self._run(*arguments, centered=self._centered)
