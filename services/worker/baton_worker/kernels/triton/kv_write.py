"""Keys and values of new tokens to their pages: plain numbers or codes, in either layout.

What vLLM calls reshape_and_cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.kernels.triton import kv_codes as bits
from baton_worker.kernels.triton import power


@triton.jit
def _put(
    rows,
    slots,
    pages,
    scales,
    token_stride,
    row_stride,
    page_stride,
    offset_stride,
    value_stride,
    head_stride,
    page_size,
    inverse_most,
    most_code,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CODES: tl.constexpr,
    GIVEN: tl.constexpr,
    DIM: tl.constexpr,
):
    """One key or value of one head of one token."""
    token, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    channel = tl.arange(0, DIM)
    inside = channel < HEAD_DIM
    value = tl.load(
        rows + token * token_stride + row * row_stride + channel, mask=inside, other=0.0
    )
    target = pages + slot // page_size * page_stride + slot % page_size * offset_stride
    target += row // NUM_KV_HEADS * value_stride + row % NUM_KV_HEADS * head_stride
    if CODES == 0:
        tl.store(target + channel, value.to(pages.dtype.element_ty), mask=inside)
    else:
        value = value.to(tl.float32)
        is_finite = bits.is_finite(value) == 1
        value = tl.where(is_finite, value, 0.0)
        scale = bits.least_scale(tl.max(tl.abs(value), 0), inverse_most)
        if GIVEN:
            scale = tl.load(scales + row)
        bits.store(target + channel, value, inside, scale, most_code, CODES)
        bits.store_scale(target + HEAD_DIM, is_finite, scale)


def put(
    rows: Tensor,
    slots: Tensor,
    pages: Tensor,
    codes: KVCodes | None,
    scales: Tensor | None = None,
) -> None:
    """See `kernels.pages.put`, its twin. `rows` may have any strides but of the last axis."""
    tokens, count, head_dim = rows.shape
    assert rows.stride(2) == 1 and pages.stride(4) == 1
    assert pages.shape[4] == head_dim + (codes.tail if codes else 0)
    if scales is not None:
        scales = scales.to(torch.float32).contiguous()
    if tokens and count:
        launch: Any = _put[(tokens, count)]
        launch(
            *(rows, slots, pages, scales, rows.stride(0), rows.stride(1), *pages.stride()[:4]),
            *(pages.shape[1], 1 / codes.most if codes else 0.0, codes.most if codes else 0.0),
            NUM_KV_HEADS=count // 2,
            HEAD_DIM=head_dim,
            CODES=codes.number if codes else 0,
            GIVEN=scales is not None,
            DIM=power(head_dim),
            num_warps=1,
        )
