"""Rotary embedding in C++: angles of positions, and one fused pass over heads between projection
and cache: norms, rotation, KV write.

The twins are `layers.rope.Rotary`, `F.rms_norm`, `layers.rope.rotate_` and `kernels.pages.put`.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel
from baton_worker.kernels.kv_codes import KVCodes, row_width
from baton_worker.kernels.page_layout import strides


class _HeadNorm(ctypes.Structure):
    """`baton::HeadNorm` of rope.cpp."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("over", ctypes.c_int32),
        ("centered", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class _Heads(ctypes.Structure):
    """`baton::Heads` of rope.cpp."""

    _fields_ = (
        ("query", _HeadNorm),
        ("key", _HeadNorm),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("interleaved", ctypes.c_int32),
        ("norm_last", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("clip", ctypes.c_float),
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


_OVER = {"head": 1, "each": 2, "full": 3}
"""As `rope.cpp` numbers them."""


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """A norm of queries or of keys."""

    weight: Tensor | None
    """[head_dim]; [num_heads, head_dim] over "each", [num_heads * head_dim] over "full", see
    `spec.QkNorm`; None for ones."""
    eps: float
    bias: Tensor | None = None
    over: str = "head"
    centered: bool = False
    """A layer norm."""

    def fields(self) -> tuple[tuple[Tensor | None, ...], _HeadNorm]:
        """What must live as long as the structure, and that."""
        kept = tuple(
            None if x is None else x.float().contiguous() for x in (self.weight, self.bias)
        )
        pointers = (None if x is None else x.data_ptr() for x in kept)
        return kept, _HeadNorm(*pointers, _OVER[self.over], self.centered, self.eps)


class CpuHeads:
    """Clipping, norm, rotation and KV write of the heads of each new token, in one pass.

    Args:
        dim: rotated channels of each head, the first ones; 0 without a rotation.
        dtype: of heads, angles and plain pages, float32 or bfloat16.
        norms: of queries and of keys, None where there is none.
        norm_last: norms come after the rotation.
        interleaved: see `CpuAngles`.
        clip: the largest magnitude of any value, before all else.
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
        norms: tuple[HeadNorm | None, HeadNorm | None] = (None, None),
        norm_last: bool = False,
        interleaved: bool = False,
        clip: float = math.inf,
        value_dim: int | None = None,
        codes: KVCodes | None = None,
        scales: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._shape, self._dim = (num_heads + 2 * num_kv_heads, head_dim), dim
        query, key = ((None, _HeadNorm()) if norm is None else norm.fields() for norm in norms)
        self._kept = query[0], key[0]
        self._heads = _Heads(
            *(query[1], key[1]),
            *(num_heads, num_kv_heads, head_dim, value_dim or head_dim, dim),
            *(interleaved, norm_last, dtype.itemsize, clip),
            *(codes.number if codes else 0, *scales),
        )
        self._stored_dtype = torch.uint8 if codes else dtype
        self._behind = None if value_dim is None else row_width(head_dim, codes)
        self._address = ctypes.addressof(self._heads)
        kernels = library("rope")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_place, 9, tokens=2)

    def __call__(
        self,
        heads: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        slots: Tensor,
        pages: Tensor,
    ) -> None:
        """Norm and rotate queries and keys in place; copy keys and values to their pages.

        Args:
            heads: [T, num_heads + 2 * num_kv_heads, head_dim], contiguous.
            cos, sin: [T, 1, dim], see `layers.rope.Angles`; None without a rotation.
            slots: int64 [T], see `AttentionBatch.slot_mapping`.
            pages: see `kernels.pages.put`.
        """
        assert heads.shape[1:] == self._shape and heads.is_contiguous()
        if self._dim:
            assert cos is not None and cos.shape[-1] == self._dim and cos.dtype is heads.dtype
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
