"""The selective scan in C++, over pages of its inputs (see `layers.mamba`)."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from baton_worker.kernels.cpu.call_recorder import structure
from baton_worker.kernels.recurrent.ssm_states import (
    Chains,
    CpuWalk,
    Snapshots,
    refuses,
    with_whole_rows,
)

_NUMBERS = (
    *("page", "token", "state", "input", "channels", "state_size", "page_size", "bytes"),
    *("read_stride", "read_bytes"),
)


class _Layout(ctypes.Structure):
    """`baton::Layout` of scan.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "states", "rates", "bias")),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


class CpuScan:
    """Processes every sequence once, some channels at a time: pages are read in place.

    Args:
        at: first input channel in a page's rows. Time steps follow, before bias and softplus, then
            the B vectors.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self._walk = CpuWalk("scan", "scan", 2)

    @classmethod
    def refuses(cls, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why the kernel does not support such pages, as half a sentence; None if it does."""
        return refuses("scan", dtype, device)

    def __call__(
        self, snapshots: Snapshots, read: Tensor, chains: Chains, rates: Tensor, bias: Tensor
    ) -> Tensor:
        """Write the states of pages, and compute the outputs of queries after their tokens.

        Args:
            snapshots: the layer's pages.
            read: [T, state_size]; float32 or of the dtype of the pages, any row stride.
            chains: the pages.
            rates: float32 [state_size, channels], of a time step of 1: powers of two, not of e.
            bias: float32 [channels], of time steps.

        Returns:
            float32 [T, channels].
        """
        tokens, states = snapshots
        state_size, channels = rates.shape
        assert read.shape[1:] == (state_size,) and states.shape[1:] == rates.shape
        assert tokens.stride(-1) == 1 and states[0].is_contiguous() and bias.shape == (channels,)
        assert rates.is_contiguous() and rates.dtype is bias.dtype is states.dtype is torch.float32
        read = with_whole_rows(read)
        out = torch.empty((len(read), channels), dtype=torch.float32)
        how = structure(
            _Layout,
            *(part.data_ptr() for part in (tokens, states, rates, bias)),
            *(tokens.stride(0), tokens.stride(1), states.stride(0)),
            *(self._at, channels, state_size, tokens.shape[1], tokens.dtype.itemsize),
            *(read.stride(0), read.dtype.itemsize),
        )
        self._walk(how, chains, read, out)
        return out
