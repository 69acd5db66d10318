"""The selective scan in C++, over pages of its inputs (see `layers.mamba`)."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from baton_worker.kernels.recurrent.ssm_states import (
    Chains,
    CpuWalk,
    Snapshots,
    refuses,
)

_NUMBERS = ("page", "token", "state", "input", "channels", "state_size", "page_size", "bytes")


class _Scan(ctypes.Structure):
    """`baton::Scan` of scan.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "states", "rates", "bias")),
        *((name, ctypes.c_void_p) for name in ("read", "out")),
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
        self._walk = CpuWalk("scan")

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
            read: float32 [T, state_size].
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
        inputs = [part.contiguous() for part in (rates, bias, read)]
        out = read.new_empty((len(read), channels))
        assert all(part.dtype is torch.float32 for part in (*inputs, out, states))
        how = _Scan(
            *(part.data_ptr() for part in (tokens, states, *inputs, out)),
            *(tokens.stride(0), tokens.stride(1), states.stride(0)),
            *(self._at, channels, state_size, tokens.shape[1], tokens.dtype.itemsize),
        )
        self._walk(how, chains)
        return out
