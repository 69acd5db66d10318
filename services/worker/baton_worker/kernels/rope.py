"""Rotary embedding in C++: angles of positions, and one fused pass over heads between projection
and cache: norms, rotation, KV write.

The twins are `layers.rope.Rotary`, `F.rms_norm`, `layers.rope.rotate_` and `kernels.pages.put`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel
from baton_worker.kernels.kv_codes import KVCodes, row_width
from baton_worker.kernels.page_layout import strides


class _Heads(ctypes.Structure):
    """`baton::Heads` of rope.cpp."""

    _fields_ = (
        ("query_weight", ctypes.c_void_p),
        ("key_weight", ctypes.c_void_p),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("normed", ctypes.c_int32),
        ("query_eps", ctypes.c_float),
        ("key_eps", ctypes.c_float),
        ("codes", ctypes.c_int32),
        ("key_scale", ctypes.c_float),
        ("value_scale", ctypes.c_float),
    )


class _Rope(ctypes.Structure):
    """`baton::Rope` of rope.cpp."""

    _fields_ = (
        ("frequencies", ctypes.c_void_p),
        ("dim", ctypes.c_int32),
        ("interleaved", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("factor", ctypes.c_float),
    )


def refuses(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels do not support such angles and heads, as half a sentence; None if they do."""
    if device.type != "cpu":
        return "they are not on the CPU"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"the CPU kernels have no {dtype}"
    if library("rope") is None:
        return "the CPU kernels could not be built"
    return None


class CpuAngles:
    """Cosines and signed sines of positions.

    Args:
        frequencies: float32 [dim / 2], in radians per token.
        factor: on both.
        interleaved: neighbouring channels make a pair; otherwise those of the two halves.
        dtype: of the result, float32 or bfloat16; all is computed in float32.
    """

    def __init__(
        self, frequencies: Tensor, factor: float, *, interleaved: bool, dtype: torch.dtype
    ) -> None:
        assert frequencies.dtype is torch.float32
        self._frequencies, self._dtype = frequencies.contiguous(), dtype
        self._dim = 2 * len(frequencies)
        self._rope = _Rope(
            self._frequencies.data_ptr(), self._dim, interleaved, dtype.itemsize, factor
        )
        self._address = ctypes.addressof(self._rope)
        kernels = library("rope")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_turn, 5, tokens=2)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [T] to [T, 1, dim] twice."""
        positions = positions.contiguous()
        cos, sin = (
            torch.empty((len(positions), 1, self._dim), dtype=self._dtype) for _ in range(2)
        )
        self._run(self._address, positions, len(positions), cos, sin)
        return cos, sin


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """An RMS norm over each head: its weight [head_dim], or None for ones."""

    weight: Tensor | None
    eps: float


class CpuHeads:
    """Norm, rotation and KV write of the heads of each new token, in one pass.

    Args:
        dim: rotated channels of each head, the first ones, in the half-split layout.
        dtype: of heads, angles and plain pages, float32 or bfloat16.
        norms: of queries and of keys, before the rotation.
        value_dim: channels of a value to keep after its key, if not all.
        codes: of the pages; None if they hold `dtype`.
        scales: scales of the codes of keys and of values; 0 if each row has its own.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dim: int,
        dtype: torch.dtype,
        norms: tuple[HeadNorm, HeadNorm] | None = None,
        value_dim: int | None = None,
        codes: KVCodes | None = None,
        scales: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._shape, self._dim = (num_heads + 2 * num_kv_heads, head_dim), dim
        query, key = norms or (HeadNorm(None, 0.0), HeadNorm(None, 0.0))
        self._weights = [None if n.weight is None else n.weight.float() for n in (query, key)]
        self._heads = _Heads(
            *(None if weight is None else weight.data_ptr() for weight in self._weights),
            *(num_heads, num_kv_heads, head_dim, value_dim or head_dim, dim),
            *(dtype.itemsize, norms is not None),
            *(query.eps, key.eps, codes.number if codes else 0, *scales),
        )
        self._stored_dtype = torch.uint8 if codes else dtype
        self._behind = None if value_dim is None else row_width(head_dim, codes)
        self._address = ctypes.addressof(self._heads)
        kernels = library("rope")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_place, 9, tokens=2)

    def __call__(
        self, heads: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, pages: Tensor
    ) -> None:
        """Norm and rotate queries and keys in place; copy keys and values to their pages.

        Args:
            heads: [T, num_heads + 2 * num_kv_heads, head_dim], contiguous.
            cos, sin: [T, 1, dim], see `layers.rope.Angles`.
            slots: int64 [T], see `AttentionBatch.slot_mapping`.
            pages: see `kernels.pages.put`.
        """
        assert heads.shape[1:] == self._shape and heads.is_contiguous()
        assert cos.shape[-1] == self._dim and cos.dtype is heads.dtype
        assert pages.dtype is self._stored_dtype
        self._run(
            self._address,
            heads,
            heads.shape[0],
            cos,
            sin,
            slots,
            pages,
            pages.shape[1],
            ctypes.addressof(strides(pages, self._behind)),
        )
