"""Lookup of embedding rows in C++. The twins are `F.embedding` and `Tensor.where`."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel


def look_up(table: Tensor, numbers: Tensor) -> Tensor:
    """Rows of `table` [N, width], contiguous, by `numbers` int64 [T]: [T, width].

    On a CPU a number outside of the table gives NaN.
    """
    kernel = _kernel() if table.device.type == "cpu" else None
    if kernel is None:
        return F.embedding(numbers, table)
    assert table.is_contiguous() and numbers.dtype is torch.int64 and numbers.ndim == 1
    numbers, rows = numbers.contiguous(), table.new_empty(len(numbers), table.shape[1])
    kernel(table, len(table), rows.shape[1] * rows.itemsize, numbers, len(numbers), rows)
    return rows


@cache
def _kernel() -> Kernel | None:
    kernels = library("embedding")
    return None if kernels is None else Kernel(kernels.baton_look_up, 6, tokens=4)


def listed(numbers: Tensor, size: int) -> Tensor:
    """Numbers int64 [T]; 0 where a table of so many rows has no such row."""
    kernel = _listed_kernel() if numbers.device.type == "cpu" else None
    if kernel is None:
        return numbers.where((numbers >= 0) & (numbers < size), 0)
    assert numbers.dtype is torch.int64 and numbers.ndim == 1
    numbers = numbers.contiguous()
    out = torch.empty_like(numbers)
    kernel(numbers, size, len(numbers), out)
    return out


@cache
def _listed_kernel() -> Kernel | None:
    kernels = library("embedding")
    return None if kernels is None else Kernel(kernels.baton_listed, 4, tokens=2)
