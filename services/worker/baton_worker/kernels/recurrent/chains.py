"""The pages of each row of a step and the tokens before each token, computed on its device: by a
kernel in C++ or in Triton, whose shape follows from the numbers of rows and tokens alone. The twin
on the host is `layers.ssm.page_segments.Cut`."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels import triton
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel, structure
from baton_worker.kernels.recurrent.ssm_states import Chains, refuses


class Rows(NamedTuple):
    """The rows of a step on the device, see `AttentionBatch`."""

    query_starts: Tensor
    """int32 [R + 1]"""
    lengths: Tensor
    """int32 [R]"""
    page_table: Tensor
    """int32 [R, any]"""
    tokens: int
    """New tokens of all rows."""
    longest: int
    """New tokens of the longest row, about: any number is right."""


class Found(NamedTuple):
    """Inputs of a step's recurrent layers."""

    chains: Chains
    """Of tokens // page_size + 2 R entries. Those that belong to no row have no queries, page 0 and
    a `firsts` of -1."""
    earlier: Tensor
    """int64 [taps - 1, T]: see `kernels.recurrent.convolution.Before`."""
    missing: Tensor
    """bool [taps - 1, T]"""


def find(rows: Rows, page_size: int, taps: int) -> Found:
    """Look up what every new token needs; nothing waits for the device.

    Args:
        rows: each with any number of tokens.
        page_size: tokens per page.
        taps: of the convolutions, 1 for none.
    """
    if triton.runs(rows.lengths.device):
        from baton_worker.kernels.triton.recurrent import chains  # Needs triton.

        return chains.find(rows, page_size, taps)
    return _find_on_cpu(rows, page_size, taps)


def runs(device: torch.device, dtype: torch.dtype, refused: str | None = None) -> bool:
    """Whether `find` has a kernel for this device, and so have layers with pages of this dtype.
    `refused`: why C++ does not compute them, if it does not."""
    return triton.runs(device) or (refused or refuses("chains", dtype, device)) is None


def empty_chains(rows: Rows, page_size: int) -> Chains:
    """Memory for the chains of a step."""
    number, device = len(rows.lengths), rows.lengths.device
    entries = rows.tokens // page_size + 2 * number
    sizes = (number, number, entries, entries, entries + 1)
    return Chains(*(torch.empty(n, dtype=torch.int64, device=device) for n in sizes))


class _Layout(ctypes.Structure):
    """`baton::Layout` of chains.cpp."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("page_size", "table_width", "taps"))


@cache
def _kernel() -> Kernel:
    kernels = library("chains")
    assert kernels is not None, "runs() was not asked"
    return Kernel(kernels.baton_find_chains, 12, rows=1)


def _find_on_cpu(rows: Rows, page_size: int, taps: int) -> Found:
    starts, lengths, table = (part.contiguous() for part in rows[:3])
    assert starts.dtype is lengths.dtype is table.dtype is torch.int32
    chains = empty_chains(rows, page_size)
    earlier = torch.empty((rows.tokens, taps - 1), dtype=torch.int64)
    missing = torch.empty((rows.tokens, taps - 1), dtype=torch.bool)
    layout = structure(_Layout, page_size, table.shape[1], taps)
    _kernel()(layout, len(lengths), starts, lengths, table, *chains, earlier, missing)
    return Found(chains, earlier.T, missing.T)
