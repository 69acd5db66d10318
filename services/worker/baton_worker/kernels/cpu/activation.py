"""Activations of feed-forwards in C++, value by value."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel

_NAMES = ("gelu_tanh", "quick_gelu", "gelu", "silu", "sigmoid", "tanh", "relu", "relu2")
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
