"""Rotary embedding in C++: angles of positions, and one fused pass over heads between projection
and cache: norms, rotation, KV write.

The twins are `layers.rope.Rotary`, `F.rms_norm`, `layers.rope.rotate_` and `kernels.pages.put`.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel, structure
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


class Temperature(ctypes.Structure):
    """`baton::Temperature` of rope.cpp: queries at a position are multiplied by
    1 + scale * log(1 + floor((position + first) / floor)); a floor of 0: by nothing."""

    _fields_ = (("scale", ctypes.c_float), ("floor", ctypes.c_float), ("first", ctypes.c_float))


class _Heads(ctypes.Structure):
    """`baton::Heads` of rope.cpp."""

    _fields_ = (
        ("query", _HeadNorm),
        ("key", _HeadNorm),
        ("value", _HeadNorm),
        ("temperature", Temperature),
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


Norms: TypeAlias = tuple[HeadNorm | None, HeadNorm | None, HeadNorm | None]
"""Of queries, keys and values; None where there is none."""


class CpuHeads:
    """Clipping, norm, rotation and KV write of the heads of each new token, in one pass.

    Args:
        dim: rotated channels of each head, the first ones; 0 without a rotation.
        dtype: of heads, angles and plain pages, float32 or bfloat16.
        norms: of heads.
        norm_last: norms come after the rotation.
        temperature: of queries, after all else.
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
        norms: Norms = (None, None, None),
        norm_last: bool = False,
        temperature: tuple[float, ...] = (),
        interleaved: bool = False,
        clip: float = math.inf,
        value_dim: int | None = None,
        codes: KVCodes | None = None,
        scales: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._shape, self._dim = (num_heads + 2 * num_kv_heads, head_dim), dim
        kept, each = zip(*map(_fields, norms), strict=True)
        self._kept = kept
        self._heads = _Heads(
            *(*each, Temperature(*temperature)),
            *(num_heads, num_kv_heads, head_dim, value_dim or head_dim, dim),
            *(interleaved, norm_last, dtype.itemsize, clip),
            *(codes.number if codes else 0, *scales),
        )
        self._stored_dtype = torch.uint8 if codes else dtype
        self._behind = None if value_dim is None else row_width(head_dim, codes)
        self._address = ctypes.addressof(self._heads)
        kernels = library("rope")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_place, 10, tokens=2)

    def __call__(
        self,
        heads: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        slots: Tensor,
        pages: Tensor,
        positions: Tensor | None = None,
    ) -> None:
        """Norm and rotate queries and keys in place; copy keys and values to their pages.

        Args:
            heads: [T, num_heads + 2 * num_kv_heads, head_dim], contiguous.
            cos, sin: [T, 1, dim], see `layers.rope.Angles`; None without a rotation.
            slots: int64 [T], see `AttentionBatch.slot_mapping`.
            pages: see `kernels.pages.put`.
            positions: int64 [T], where there is a temperature.
        """
        assert positions is not None or not self._heads.temperature.floor
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
            None if positions is None else positions.contiguous(),
        )


def _fields(norm: HeadNorm | None) -> tuple[tuple[Tensor | None, ...], _HeadNorm]:
    return ((), _HeadNorm()) if norm is None else norm.fields()


class _Latents(ctypes.Structure):
    """`baton::Latents` of rope.cpp."""

    _fields_ = (
        ("norm", _HeadNorm),
        ("temperature", Temperature),
        *((name, ctypes.c_int32) for name in ("num_heads", "kv_rank", "nope_dim", "rope_dim")),
        *((name, ctypes.c_int32) for name in ("dim", "interleaved", "bytes")),
        ("latent_scale", ctypes.c_float),
        *((name, ctypes.c_int64) for name in ("query_stride", "down_stride")),
    )


class CpuLatents:
    """The rotated channels of latent queries, and the latent that is kept, of each new token in one
    pass.

    Args:
        num_heads, kv_rank, nope_dim, rope_dim, latent_scale: see `spec.LatentAttention`.
        dim: channels that turn, the first of `rope_dim`; 0 without a rotation.
        norm: of latents.
        temperature: see `CpuHeads`.
        interleaved: see `CpuAngles`.
    """

    def __init__(
        self, *, norm: HeadNorm, dtype: torch.dtype, temperature: tuple[float, ...], **sizes: Any
    ) -> None:
        self._kept, fields = norm.fields()
        self._dtype, self._temperature = dtype, bool(temperature)
        heat = Temperature(*temperature)
        self._how = _Latents(norm=fields, temperature=heat, bytes=dtype.itemsize, **sizes)
        self._address = ctypes.addressof(self._how)
        kernels = library("rope")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_place_latents, 12, tokens=3)

    def __call__(
        self,
        heads: Tensor,
        query: Tensor,
        down: Tensor,
        angles: tuple[Tensor, Tensor] | None,
        positions: Tensor | None,
        slots: Tensor,
        pages: Tensor,
    ) -> None:
        """Fill `heads` and the pages.

        Args:
            heads: [T, num_heads + 1, kv_rank + rope_dim], contiguous; the first channels of queries
                are there.
            query: [T, num_heads * (nope_dim + rope_dim)].
            down: [T, kv_rank + rope_dim], latents before their norm and keys before their rotation.
            angles: see `CpuHeads`.
            positions: int64 [T], where there is a temperature.
            slots: int64 [T].
            pages: [num_pages, page_size, 1, 1, kv_rank + rope_dim], of any strides but the last.
        """
        how = self._how
        assert heads.is_contiguous() and query.is_contiguous() and down.is_contiguous()
        assert heads.dtype is query.dtype is down.dtype is pages.dtype is self._dtype
        assert heads.shape[1:] == (how.num_heads + 1, how.kv_rank + how.rope_dim)
        assert pages.shape[2:] == (1, 1, heads.shape[2]) and down.shape[1] == heads.shape[2]
        assert (positions is not None) >= self._temperature
        how.query_stride, how.down_stride = query.stride(0), down.stride(0)
        cos, sin = (None, None) if angles is None else angles
        assert how.dim == (0 if cos is None else cos.shape[-1])
        self._run(
            *(self._address, query, down, len(heads), cos, sin),
            None if positions is None else positions.contiguous(),
            *(heads, slots, pages, pages.shape[1], ctypes.addressof(strides(pages, 0))),
        )


class _Rotation(ctypes.Structure):
    """`baton::Rotation` of rope.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("num_heads", "token_stride", "head_stride", "dim", "angle_step", "interleaved"),
            "bytes",
        )
    )


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> bool:
    """Rotate the first `dim` channels of heads [T, num_heads, head_dim] in place, by cos and signed
    sin [T, 1 or num_heads, dim]. False if it cannot: the twin is `layers.rope.rope.turn_`."""
    refused = refuses(heads.dtype, heads.device) is not None
    if refused or heads.stride(2) != 1 or not cos.dtype is sin.dtype is heads.dtype:
        return False
    assert cos.shape == sin.shape and cos.shape[:2] in ((len(heads), 1), heads.shape[:2])
    (_, each, dim), num_heads = cos.shape, heads.shape[1]
    how = structure(
        *(_Rotation, num_heads, heads.stride(0), heads.stride(1), dim),
        *(dim if each == num_heads and each > 1 else 0, interleaved, heads.itemsize),
    )
    _rotation()(how, heads, len(heads), cos.contiguous(), sin.contiguous())
    return True


@cache
def _rotation() -> Kernel:
    kernels = library("rope")
    assert kernels is not None, "refuses() was not asked"
    return Kernel(kernels.baton_rotate, 5, tokens=2)
