"""The steps between the projection and the attention of a layer, in one launch: norms of queries
and keys, rotation, and keys and values to their pages."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.kernels.rope import HeadNorm
from baton_worker.kernels.triton import kv_codes as bits
from baton_worker.kernels.triton import power


@triton.jit
def _weighted(x, inverse_norm, weight, channel, has_channel, SCALED: tl.constexpr):
    """Channels of a normed head, rounded as a norm of its own rounds them."""
    normed = x.to(tl.float32) * inverse_norm
    if SCALED:
        normed *= tl.load(weight + channel, mask=has_channel, other=0.0).to(tl.float32)
    return normed.to(x.dtype)


@triton.jit
def _squares(x):
    """The sum of the squares of some channels."""
    return tl.sum(x.to(tl.float32) * x.to(tl.float32), 0)


@triton.jit
def _rotated(a, b, angle, cos, sin, first, second, paired):
    """Pairs of channels turned by the angles at `angle`. The sign of each half is in `sin`."""
    cos_a = tl.load(cos + angle + first, mask=paired, other=0.0).to(tl.float32)
    cos_b = tl.load(cos + angle + second, mask=paired, other=0.0).to(tl.float32)
    sin_a = tl.load(sin + angle + first, mask=paired, other=0.0).to(tl.float32)
    sin_b = tl.load(sin + angle + second, mask=paired, other=0.0).to(tl.float32)
    wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
    turned_a = (wide_a * cos_a + wide_b * sin_a).to(a.dtype)
    return turned_a, (wide_b * cos_b + wide_a * sin_b).to(b.dtype)


@triton.jit
def _normed(
    values, channels, has_channel, weight, eps, HEAD_DIM: tl.constexpr, SCALED: tl.constexpr
):
    """The three parts of a head behind its RMS norm."""
    (a, b, c), (first, second, rest), (is_pair, is_rest) = values, channels, has_channel
    inverse_norm = tl.rsqrt((_squares(a) + _squares(b) + _squares(c)) / HEAD_DIM + eps)
    a = _weighted(a, inverse_norm, weight, first, is_pair, SCALED)
    b = _weighted(b, inverse_norm, weight, second, is_pair, SCALED)
    return a, b, _weighted(c, inverse_norm, weight, rest, is_rest, SCALED)


@triton.jit
def _store(target, values, channels, has_channel):
    """The three parts of a head as they are."""
    (a, b, c), (first, second, rest), (is_pair, is_rest) = values, channels, has_channel
    tl.store(target + first, a, mask=is_pair)
    tl.store(target + second, b, mask=is_pair)
    tl.store(target + rest, c, mask=is_rest)


@triton.jit
def _store_codes(
    target,
    values,
    channels,
    has_channel,
    scales,
    row,
    inverse_most,
    most_code,
    HEAD_DIM: tl.constexpr,
    CODES: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """A head as codes with one scale: that of the `row` if GIVEN, or the least one."""
    (a, b, c), (first, second, rest), (is_pair, is_rest) = values, channels, has_channel
    wide_a, wide_b, wide_c = a.to(tl.float32), b.to(tl.float32), c.to(tl.float32)
    finite = bits.is_finite(wide_a) + bits.is_finite(wide_b) + bits.is_finite(wide_c)
    is_finite = finite == 3
    wide_a, wide_b = tl.where(is_finite, wide_a, 0.0), tl.where(is_finite, wide_b, 0.0)
    wide_c = tl.where(is_finite, wide_c, 0.0)
    most = tl.maximum(tl.max(tl.abs(wide_a), 0), tl.max(tl.abs(wide_b), 0))
    scale = bits.least_scale(tl.maximum(most, tl.max(tl.abs(wide_c), 0)), inverse_most)
    if GIVEN:
        scale = tl.load(scales + row)
    bits.store(target + first, wide_a, is_pair, scale, most_code, CODES)
    bits.store(target + second, wide_b, is_pair, scale, most_code, CODES)
    bits.store(target + rest, wide_c, is_rest, scale, most_code, CODES)
    bits.store_scale(target + HEAD_DIM, is_finite, scale)


@triton.jit
def _place(
    heads,
    cos,
    sin,
    slots,
    pages,
    query_weight,
    key_weight,
    scales,
    query_eps,
    key_eps,
    inverse_most,
    most_code,
    token_stride,
    page_stride,
    offset_stride,
    value_stride,
    head_stride,
    page_size,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
    NORMED: tl.constexpr,
    SCALED: tl.constexpr,
    CODES: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """One head of one token. A pair is a channel and the one half a DIM on; channels from DIM on,
    REST of them or fewer, are not rotated."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head_start = heads + token * token_stride + head * HEAD_DIM
    first, rest = tl.arange(0, PAIRS), DIM + tl.arange(0, REST)
    second, is_pair, is_rest = first + DIM // 2, first < DIM // 2, rest < HEAD_DIM
    first_half = tl.load(head_start + first, mask=is_pair, other=0.0)
    second_half = tl.load(head_start + second, mask=is_pair, other=0.0)
    unrotated = tl.load(head_start + rest, mask=is_rest, other=0.0)
    channels, has_channel = (first, second, rest), (is_pair, is_rest)
    if head < NUM_HEADS + NUM_KV_HEADS:
        if NORMED:
            weight, eps = key_weight, key_eps
            if head < NUM_HEADS:
                weight, eps = query_weight, query_eps
            values = (first_half, second_half, unrotated)
            first_half, second_half, unrotated = _normed(
                values, channels, has_channel, weight, eps, HEAD_DIM, SCALED
            )
        first_half, second_half = _rotated(
            first_half, second_half, token * DIM, cos, sin, first, second, is_pair
        )
        tl.store(head_start + first, first_half, mask=is_pair)
        tl.store(head_start + second, second_half, mask=is_pair)
        if NORMED:
            tl.store(head_start + rest, unrotated, mask=is_rest)
    if head >= NUM_HEADS:
        slot, row = tl.load(slots + token), head - NUM_HEADS
        target = pages + slot // page_size * page_stride + slot % page_size * offset_stride
        target += row // NUM_KV_HEADS * value_stride + row % NUM_KV_HEADS * head_stride
        stored = (first_half, second_half, unrotated)
        if CODES == 0:
            _store(target, stored, channels, has_channel)
        else:
            _store_codes(
                *(target, stored, channels, has_channel, scales, row),
                *(inverse_most, most_code, HEAD_DIM, CODES, GIVEN),
            )


class TritonHeads:
    """Norm, rotation and KV write of the heads of each new token; the twin on a CPU is
    `kernels.rope.CpuHeads`.

    Args:
        dim: rotated channels of each head, the first ones, in the half-split layout.
        norms: of queries and of keys, before the rotation.
        codes: of the pages; None if they hold floats.
        scales: float32 [2 * num_kv_heads, 1], see `KVCodes.encode`; None: each row has its own.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dim: int,
        norms: tuple[HeadNorm, HeadNorm] | None = None,
        codes: KVCodes | None = None,
        scales: Tensor | None = None,
    ) -> None:
        self._scales = None if scales is None else scales.float().contiguous()
        self._most = (1 / codes.most, codes.most) if codes else (0.0, 0.0)
        self._row = head_dim + (codes.tail if codes else 0)
        self._count, self._head_dim = num_heads + 2 * num_kv_heads, head_dim
        self._query, self._key = norms or (HeadNorm(None, 0.0), HeadNorm(None, 0.0))
        scaled = self._query.weight is not None
        assert scaled == (self._key.weight is not None)
        self._constants: dict[str, Any] = {
            **{"NUM_HEADS": num_heads, "NUM_KV_HEADS": num_kv_heads, "HEAD_DIM": head_dim},
            **{"DIM": dim, "PAIRS": power(dim // 2), "REST": power(max(1, head_dim - dim))},
            **{"NORMED": norms is not None, "SCALED": scaled, "num_warps": 1},
            **{"CODES": codes.number if codes else 0, "GIVEN": scales is not None},
        }

    def __call__(
        self, heads: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, pages: Tensor
    ) -> None:
        """Norm and rotate queries and keys in place; copy keys and values to their pages.

        Args:
            heads: [T, num_heads + 2 * num_kv_heads, head_dim], any stride of the first axis.
            cos, sin: [T, 1, dim], see `layers.rope.Angles`.
            slots: int64 [T], see `AttentionBatch.slot_mapping`.
            pages: see `kernels.pages.put`.
        """
        assert heads.shape[1:] == (self._count, self._head_dim)
        assert heads.stride()[1:] == (self._head_dim, 1) and pages.stride(4) == 1
        assert cos.is_contiguous() and sin.is_contiguous() and pages.shape[4] == self._row
        if not len(heads):
            return
        launch: Any = _place[(len(heads), self._count)]
        launch(
            *(heads, cos, sin, slots, pages, self._query.weight, self._key.weight, self._scales),
            *(self._query.eps, self._key.eps, *self._most, heads.stride(0), *pages.stride()[:4]),
            pages.shape[1],
            **self._constants,
        )
