"""Gated delta nets in C++, over pages of keys and values (see `layers.delta_rule`)."""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from baton_worker.kernels.recurrent.ssm_states import (
    Chains,
    CpuWalk,
    Snapshots,
    refuses,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads, and the layout of their keys and values in a token's row, head after head. Consecutive
    heads share keys in groups of equal size."""

    key: int
    """The channel with which keys begin."""
    value: int
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    channels: int
    """Of a head's decay: 1, or `key_dim`."""


_NUMBERS = (
    *("page", "token", "state", "key", "value"),
    *("heads", "key_heads", "key_dim", "value_dim", "channels", "page_size", "bytes"),
)


class _Delta(ctypes.Structure):
    """`baton::Delta` of delta.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "states", "strength", "decay")),
        *((name, ctypes.c_void_p) for name in ("query", "out")),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


class CpuDelta:
    """Processes every sequence once, head by head. Pages are read in place; the update of a page's
    tokens is computed once for their outputs and for the next page's state."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._walk = CpuWalk("delta")

    @classmethod
    def refuses(cls, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why the kernel does not support such pages, as half a sentence; None if it does."""
        return refuses("delta", dtype, device)

    def __call__(
        self, snapshots: Snapshots, query: Tensor, chains: Chains, strength: Tensor, decay: Tensor
    ) -> Tensor:
        """Write the states of pages, and compute the outputs of queries after their tokens.

        Args:
            snapshots: the layer's pages; keys are not of length 1 yet.
            query: float32 [T, key_heads, key_dim], not of length 1 yet.
            chains: of N pages.
            strength: float32 [N, page_size, heads], beta of the delta rule.
            decay: float32 [N, page_size, heads, channels], log decay.

        Returns:
            float32 [T, heads, value_dim].
        """
        shape, (tokens, states) = self._shape, snapshots
        expected = (len(chains.pages), tokens.shape[1], shape.heads)
        assert strength.shape == expected and decay.shape == (*expected, shape.channels)
        assert query.shape[1:] == (shape.key_heads, shape.key_dim)
        assert tokens.stride(-1) == 1 and states[0].is_contiguous()
        inputs = [part.contiguous() for part in (strength, decay, query)]
        out = query.new_empty((len(query), shape.heads, shape.value_dim))
        assert all(part.dtype is torch.float32 for part in (*inputs, out, states))
        how = _Delta(
            *(part.data_ptr() for part in (tokens, states, *inputs, out)),
            *(tokens.stride(0), tokens.stride(1), states.stride(0)),
            *(*astuple(shape), tokens.shape[1], tokens.dtype.itemsize),
        )
        self._walk(how, chains)
        return out
