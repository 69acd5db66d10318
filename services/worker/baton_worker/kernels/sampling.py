"""Sampling in C++; the twin is `baton_worker.sampling.sampler`."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.kernels.cpu import library


class _Parameters(ctypes.Structure):
    """`baton::Parameters` of sampling.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("warmth", "top_k", "top_p", "min_p", "uniform")
    )


def refuses(device: torch.device) -> str | None:
    """Why the kernel cannot sample on this device, as half a sentence; None if it can."""
    if device.type != "cpu":
        return "the CPU kernels do not run there"
    return "the CPU kernels could not be built" if library("sampling") is None else None


def most_probable(logits: Tensor) -> npt.NDArray[np.int32]:
    """The first maximum of each row of `logits` float32 [R, V], contiguous: int32 [R]; -1 where it
    is not finite or a number is NaN."""
    assert logits.dtype is torch.float32 and logits.is_contiguous()
    tokens = np.empty(len(logits), np.int32)
    _most_probable()(logits.data_ptr(), *logits.shape, tokens.ctypes.data)
    return tokens


@cache
def _most_probable() -> ctypes._NamedFuncPointer:
    kernels = library("sampling")
    assert kernels is not None, "refuses() was not asked"
    run, pointer = kernels.baton_most_probable, ctypes.c_void_p
    run.argtypes, run.restype = (pointer, *(ctypes.c_int64,) * 2, pointer), None
    return run


def draw(
    logits: Tensor,
    *,
    warmth: npt.NDArray[np.float32],
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float64],
    min_p: npt.NDArray[np.float64],
    uniform: npt.NDArray[np.float64],
) -> npt.NDArray[np.int32]:
    """One token per row of `logits` float32 [R, V], which are overwritten; int32 [R].

    A row's token does not depend on the other rows.

    Args:
        warmth: 1 / temperature.
        top_k: outside of (0, V) all tokens are kept.
        top_p: in (0, 1].
        min_p: in [0, 1], relative to the most probable token.
        uniform: in (0, 1).
    """
    assert logits.dtype is torch.float32 and logits.is_contiguous()
    kernels = library("sampling")
    assert kernels is not None, "refuses() was not asked"
    columns = [np.ascontiguousarray(column) for column in (warmth, top_k, top_p, min_p, uniform)]
    dtypes = (np.float32, np.int64, np.float64, np.float64, np.float64)
    assert [column.dtype for column in columns] == [np.dtype(kind) for kind in dtypes]
    assert all(column.shape == (len(logits),) for column in columns)
    how, tokens = _Parameters(*(x.ctypes.data for x in columns)), np.empty(len(logits), np.int32)
    run, pointer = kernels.baton_sample, ctypes.c_void_p
    run.argtypes, run.restype = (pointer, *(ctypes.c_int64,) * 2, pointer, pointer), None
    run(logits.data_ptr(), *logits.shape, ctypes.byref(how), tokens.ctypes.data)
    return tokens
