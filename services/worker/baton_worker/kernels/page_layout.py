"""Memory layout of a page: token by token (NHD), or head by head (HND).

    nhd     [num_pages, page_size, 2 (key, value), num_kv_heads, width]
    hnd     [num_pages, 2 (key, value), num_kv_heads, page_size, width]

The names are those of FlashInfer (Ye et al. 2025, arXiv:2501.01005). In both, pages are passed as a
tensor of the first shape; for HND it is a strided view. So code that indexes pages need not know
the layout, and a page is one block of memory in either.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

import torch
from torch import Tensor

from baton_worker.kernels.cpu.huge_pages import zeros

Pages: TypeAlias = tuple[int, int, int, int, int]
"""[num_pages, page_size, 1 or 2, num_kv_heads, width]"""


class Layout(StrEnum):
    """A memory layout of pages."""

    NHD = "nhd"
    """Token by token: a step writes one piece of memory per token."""
    HND = "hnd"
    """Head by head: the keys of one head, which one query reads, are one piece of memory."""

    def zeros(
        self,
        shape: Pages,
        *,
        dtype: torch.dtype,
        device: torch.device,
        allocate: Callable[..., Tensor] = zeros,
    ) -> Tensor:
        """Pages of `shape`, each one block of memory in this order. `allocate` is like
        `huge_pages.zeros`."""
        num_pages, *page = shape
        memory = allocate((num_pages, math.prod(page)), dtype=dtype, device=device)
        return self.ordered(memory, shape[1:])

    def ordered(self, memory: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
        """Pages of `shape` out of memory [num_pages, numbers of a page], in this order."""
        if self is Layout.NHD:
            return torch.unflatten(memory, 1, shape)
        size, planes, heads, width = shape
        by_head = torch.unflatten(memory, 1, (planes, heads, size, width))
        return by_head.permute(0, 3, 1, 2, 4)


EVERY = frozenset(Layout)
"""Layouts of a backend that indexes pages by strides."""


class Strides(ctypes.Structure):
    """`baton::Strides` of pages.h: elements from page, token, key to value, head to the next."""

    _fields_ = (
        ("page", ctypes.c_int64),
        ("token", ctypes.c_int64),
        ("value", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


def strides(pages: Tensor, value: int | None = None) -> Strides:
    """Strides of pages in either layout; `value` is the offset from a key to its value if both
    share a plane."""
    page, token, plane, head, inner = pages.stride()
    assert inner == 1
    return _strides(page, token, plane if value is None else value, head)


@functools.cache
def _strides(*outer: int) -> Strides:
    return Strides(*outer)
