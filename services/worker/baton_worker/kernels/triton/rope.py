"""Rotation of heads in place (RoPE, Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.triton import power


@triton.jit
def _rotate(
    heads,
    cos,
    sin,
    token_stride,
    head_stride,
    num_heads,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Some heads of one token. A pair is two neighbours, or a channel and the one half a DIM on."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, PAIRS)
    if INTERLEAVED:
        first, second = 2 * pair, 2 * pair + 1
    else:
        first, second = pair, pair + DIM // 2
    inside = pair < DIM // 2
    mask = (head < num_heads)[:, None] & inside[None, :]
    head_start = heads + token * token_stride + head[:, None] * head_stride
    a = tl.load(head_start + first[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(head_start + second[None, :], mask=mask, other=0.0).to(tl.float32)
    angle = token * DIM
    cos_a = tl.load(cos + angle + first, mask=inside, other=0.0).to(tl.float32)[None, :]
    cos_b = tl.load(cos + angle + second, mask=inside, other=0.0).to(tl.float32)[None, :]
    # The sign of each half is in `sin` already.
    sin_a = tl.load(sin + angle + first, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_b = tl.load(sin + angle + second, mask=inside, other=0.0).to(tl.float32)[None, :]
    number = heads.dtype.element_ty
    tl.store(head_start + first[None, :], (a * cos_a + b * sin_a).to(number), mask=mask)
    tl.store(head_start + second[None, :], (b * cos_b + a * sin_b).to(number), mask=mask)


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> None:
    """Rotate the first channels of heads [T, num_heads, head_dim] in place, any strides but of the
    last axis; the twin is `layers.rope.rotate_`.

    Args:
        cos, sin: [T, 1, dim], see `layers.rope.Angles`.
    """
    tokens, num_heads, _ = heads.shape
    dim = cos.shape[-1]
    assert heads.stride(2) == 1 and cos.is_contiguous() and sin.is_contiguous()
    pairs = power(dim // 2)
    each = max(1, min(power(num_heads), 2048 // pairs))
    if tokens and num_heads:
        launch: Any = _rotate[(tokens, triton.cdiv(num_heads, each))]
        launch(
            *(heads, cos, sin, heads.stride(0), heads.stride(1), num_heads),
            DIM=dim,
            INTERLEAVED=interleaved,
            HEADS=each,
            PAIRS=pairs,
            num_warps=4,
        )
