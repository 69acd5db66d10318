"""Activations of feed-forwards in C++, value by value."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel

_NUMBERS = {"gelu_tanh": 0, "quick_gelu": 1}
"""As `activation.cpp` numbers them."""
_DTYPES = (torch.float32, torch.bfloat16)


def activation_kernel(name: str, twin: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The activation of this name: on a CPU in C++, elsewhere `twin`. Equal values give equal bits,
    and are rounded once."""
    number = _NUMBERS[name]

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
