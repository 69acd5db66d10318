"""Exact arithmetic and copies of torch as calls of a kernel in C++, for steps that are recorded."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel, structure

_NUMBERS = {"add": 0, "sub": 1, "mul": 2, "mul_": 2, "div": 3}
"""As `elementwise.cpp` numbers them."""
_COPIES = frozenset(("cat", "clone", "copy_", "_to_copy", "new_zeros"))
"""Operators that copy rows."""
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
    if name in _COPIES:
        return _copies(name, args, kwargs, out, rows)
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


class _Copy(ctypes.Structure):
    """`baton::Copy` of elementwise.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("outer", "middle", "width", "row", "outer_step", "middle_step"),
            *("to_row", "to_outer_step", "to_middle_step", "bytes", "to_bytes"),
        )
    )


def _copies(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor, rows: int
) -> bool:
    """`repeat` of an operator that copies rows."""
    if out.ndim < 2 or len(out) != rows or not out.numel() or out.device.type != "cpu":
        return False
    pairs = _copied(name, args, out)
    if not pairs or not all(_fits(x, to) for x, to in pairs) or (run := _copy_kernel()) is None:
        return False
    for x, to in pairs:
        if to.numel():
            run(_how(x, to), x, rows, to)
    return True


def _copied(name: str, args: Sequence[Any], out: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What is copied, and to which part of `out`, of the same shape; none if that is not done row
    by row."""
    if name == "new_zeros":
        return [(_zeros(out[0].numel(), out.dtype).view(out.shape[1:]).expand(out.shape), out)]
    if name != "cat":
        source: Tensor = args[1] if name == "copy_" else args[0]
        return [(source.expand(out.shape), out)]
    tensors, axis = args[0], args[1] if len(args) > 1 else 0
    if axis % out.ndim == 0:
        return []
    return list(zip(tensors, out.split([x.shape[axis] for x in tensors], axis), strict=True))


@cache
def _zeros(count: int, dtype: torch.dtype) -> Tensor:
    """Recorded calls keep its address."""
    return torch.zeros(count, dtype=dtype)


def _how(x: Tensor, to: Tensor) -> int:
    """Address of the structure of a copy."""
    outer, middle = [*to.shape[1:-1], 1, 1][:2]
    (row, *ours), (to_row, *theirs) = ([*some.stride()[:-1], 0, 0][:3] for some in (x, to))
    sizes = outer, middle, to.shape[-1]
    return structure(_Copy, *sizes, row, *ours, to_row, *theirs, x.itemsize, to.itemsize)


def _fits(x: Tensor, to: Tensor) -> bool:
    """Whether rows of x can be copied to those of `to`: at most two axes of neighbours, of the same
    dtype or of float32 and bfloat16."""
    if x.shape != to.shape or x.ndim > 4 or x.device.type != "cpu":
        return False
    same = x.dtype is to.dtype or {x.dtype, to.dtype} == set(_DTYPES)
    return same and all(each.shape[-1] == 1 or each.stride(-1) == 1 for each in (x, to))


@cache
def _copy_kernel() -> Kernel | None:
    kernels = library("elementwise")
    return None if kernels is None else Kernel(kernels.baton_copy, 4, tokens=2)


@cache
def _kernel() -> Kernel | None:
    kernels = library("elementwise")
    return None if kernels is None else Kernel(kernels.baton_elementwise, 11, tokens=4)
