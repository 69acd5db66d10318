"""Gated delta nets in C++, over pages of keys and values (see `layers.delta_rule`)."""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass

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
    *("query_stride", "query_bytes"),
)


class _Layout(ctypes.Structure):
    """`baton::Layout` of delta.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "states")),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


class CpuDelta:
    """Processes every sequence once, head by head. Pages are read in place; the update of a page's
    tokens is computed once for their outputs and for the next page's state."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._walk = CpuWalk("delta", "delta", 4)

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
            query: [T, key_heads, key_dim], not of length 1 yet; float32 or of the dtype of the
                pages, any row stride.
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
        query = with_whole_rows(query)
        out = torch.empty((len(query), shape.heads, shape.value_dim), dtype=torch.float32)
        assert all(part.dtype is torch.float32 for part in (strength, decay, states))
        how = structure(
            _Layout,
            *(tokens.data_ptr(), states.data_ptr()),
            *(tokens.stride(0), tokens.stride(1), states.stride(0)),
            *(*astuple(shape), tokens.shape[1], tokens.dtype.itemsize),
            *(query.stride(0), query.dtype.itemsize),
        )
        self._walk(how, chains, strength.contiguous(), decay.contiguous(), query, out)
        return out


class _Gates(ctypes.Structure):
    """`baton::Gates` of delta.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "log_rates", "bias")),
        *((name, ctypes.c_int64) for name in ("page", "token", "at", "heads", "channels")),
        *((name, ctypes.c_int64) for name in ("page_size", "bytes")),
        ("strongest", ctypes.c_float),
    )


class CpuDeltaGates:
    """In C++: beta and the log decays of the tokens of each entry of chains, from the last channels
    of their rows. What tokens that are not there have is arbitrary.

    Args:
        strongest: the most that beta can be.
    """

    def __init__(self, strongest: float) -> None:
        self._strongest = strongest
        self._walk = CpuWalk("delta", "delta_gates", 2)

    def __call__(
        self, tokens: Tensor, chains: Chains, log_rates: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The strength and decay of `CpuDelta`.

        Args:
            tokens: those of `Snapshots`: each row ends with the inputs of betas and decays.
            chains: of N pages.
            log_rates: float32 [heads].
            bias: float32 [heads * channels].
        """
        heads, channels = log_rates.numel(), bias.numel() // log_rates.numel()
        assert log_rates.dtype is bias.dtype is torch.float32 and tokens.stride(-1) == 1
        how = structure(
            _Gates,
            *(part.data_ptr() for part in (tokens, log_rates, bias)),
            *(tokens.stride(0), tokens.stride(1), tokens.shape[-1] - heads * (1 + channels)),
            *(heads, channels, tokens.shape[1], tokens.dtype.itemsize, self._strongest),
        )
        strength = torch.empty((len(chains.pages), tokens.shape[1], heads), dtype=torch.float32)
        decay = strength.new_empty((*strength.shape, channels))
        self._walk(how, chains, strength, decay)
        return strength, decay
