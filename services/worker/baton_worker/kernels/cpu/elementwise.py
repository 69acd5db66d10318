"""Exact arithmetic of torch as calls of a kernel in C++, for steps that are recorded."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel

_NUMBERS = {"add": 0, "sub": 1, "mul": 2, "mul_": 2, "div": 3}
"""As `elementwise.cpp` numbers them."""
_DTYPES = (torch.float32, torch.bfloat16)


class _Operand(NamedTuple):
    """The second operand, as the kernel takes it."""

    memory: Tensor | None
    row_step: int = 0
    step: int = 0
    number: float = 0.0


def repeat(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor, rows: int
) -> bool:
    """Compute `out`, which an operator of torch has made of `args`, with the kernel, bit by bit the
    same; while calls are recorded, that is a call with this number of rows. False if it cannot:
    another operator, or operands that are not a number or of such rows, each by itself."""
    if name not in _NUMBERS or kwargs or out.ndim < 2 or len(out) != rows:
        return False
    first, second = args
    if name != "sub" and name != "div" and not _is_rows(first, out):
        first, second = second, first
    operand = _operand(second, out)
    if operand is None or not _is_rows(first, out) or (run := _kernel()) is None:
        return False
    columns = out[0].numel()
    (bits,) = struct.unpack("<i", struct.pack("<f", operand.number))
    run(
        *(_NUMBERS[name], out.itemsize, first, first.stride(0), rows, columns),
        *(operand.memory, operand.row_step, operand.step, bits, out),
    )
    return True


def _is_rows(x: Any, out: Tensor) -> bool:
    """Whether rows of x are like those of `out`, which is contiguous."""
    if not isinstance(x, Tensor) or x.shape != out.shape or x.dtype is not out.dtype:
        return False
    fits = out.dtype in _DTYPES and out.device.type == "cpu" and out.is_contiguous()
    return fits and x[0].is_contiguous()


def _operand(x: Any, out: Tensor) -> _Operand | None:
    if isinstance(x, int | float):
        return _Operand(None, number=float(x))
    if _is_rows(x, out):
        return _Operand(x, x.stride(0), 1)
    if not isinstance(x, Tensor) or x.dtype is not out.dtype or out.ndim > 2:
        return None
    if x.shape == out.shape[1:] and x.is_contiguous():
        return _Operand(x, 0, 1)
    if x.shape == (len(out), 1):
        return _Operand(x, x.stride(0), 0)
    return None


@cache
def _kernel() -> Kernel | None:
    kernels = library("elementwise")
    return None if kernels is None else Kernel(kernels.baton_elementwise, 11, tokens=4)
