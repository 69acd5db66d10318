"""Activations and gates in C++, value by value."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel, structure

_NAMES = ("gelu_tanh", "quick_gelu", "gelu", "silu", "sigmoid", "tanh", "relu", "relu2", "softplus")
"""As `activation.h` numbers them."""
_ALIASES = {
    "swish": "silu",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh"),
}
"""Other names in configs of checkpoints."""
_DTYPES = (torch.float32, torch.bfloat16)


def numbered(name: str) -> int | None:
    """The number that kernels have for an activation; None if they do not have it."""
    name = _ALIASES.get(name, name)
    return _NAMES.index(name) if name in _NAMES else None


def activation_kernel(name: str, twin: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The activation of this name: on a CPU in C++, elsewhere `twin`. Equal values give equal bits,
    and are rounded once."""
    number = _NAMES.index(name)

    def activated(x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype not in _DTYPES or (run := _kernel()) is None:
            return twin(x)
        x = x.contiguous()
        y = torch.empty_like(x)
        run(number, x.dtype.itemsize, x, x.numel(), y)
        return y

    return activated


@cache
def _kernel() -> Kernel | None:
    kernels = library("activation")
    return None if kernels is None else Kernel(kernels.baton_activate, 5, tokens=3)


def xielu(x: Tensor, parameters: Sequence[Tensor]) -> Tensor | None:
    """xIELU with the float32 parameters of `layers.ffn.xielu`, on a CPU in C++; elsewhere None."""
    if x.device.type != "cpu" or x.dtype not in _DTYPES or (run := _xielu_kernel()) is None:
        return None
    x = x.contiguous()
    y = torch.empty_like(x)
    run(x.dtype.itemsize, x, x.numel(), *parameters, y)
    return y


@cache
def _xielu_kernel() -> Kernel | None:
    kernels = library("activation")
    return None if kernels is None else Kernel(kernels.baton_xielu, 8, tokens=2)


class _Gating(ctypes.Structure):
    """`baton::Gating` of activation.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("activation", "x_bytes", "bytes", "width", "each", "x_stride", "gate_stride")
    )


def gate_kernel(
    activation: str | None, twin: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    """The product of x [T, width], float32 or of the dtype of the gate, and the activation of gates
    [T, width / n], each of which n channels share: rounded once to the dtype of the gate. On a CPU
    in C++, elsewhere `twin`. None: the gate as it is."""
    number = -1 if activation is None else _NAMES.index(activation)

    def gated(x: Tensor, gate: Tensor) -> Tensor:
        if x.device.type != "cpu" or gate.dtype not in _DTYPES or (run := _gate_kernel()) is None:
            return twin(x, gate)
        assert x.dtype in (gate.dtype, torch.float32) and x.shape[1] % gate.shape[1] == 0
        x, gate = (part if part.stride(1) == 1 else part.contiguous() for part in (x, gate))
        (rows, width), each = x.shape, x.shape[1] // gate.shape[1]
        sizes = x.dtype.itemsize, gate.dtype.itemsize, width, each
        how = structure(_Gating, number, *sizes, x.stride(0), gate.stride(0))
        y = torch.empty(x.shape, dtype=gate.dtype)
        run(how, x, gate, rows, y)
        return y

    return gated


@cache
def _gate_kernel() -> Kernel | None:
    kernels = library("activation")
    return None if kernels is None else Kernel(kernels.baton_gate, 5, tokens=3)
