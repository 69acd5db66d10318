"""Top-k of a router's softmax: each token's experts and their weights in one pass."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.triton import power


@triton.jit(do_not_specialize=["num_tokens"])
def _top_k(
    logits,
    weights,
    experts,
    num_tokens,
    floor,
    factor,
    NUM_EXPERTS: tl.constexpr,
    COUNT: tl.constexpr,
    NORMED: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """The COUNT largest of some rows, the lowest expert first among equals; NORMED by their sum,
    which is at least `floor`; times `factor`."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    expert = tl.arange(0, WIDTH)
    is_token = token < num_tokens
    mask = is_token[:, None] & (expert < NUM_EXPERTS)[None, :]
    source = token[:, None] * NUM_EXPERTS + expert[None, :]
    logit = tl.load(logits + source, mask=mask, other=float("-inf"))
    maximum = tl.where(is_token, tl.max(logit, 1), 0.0)
    score = tl.exp(logit - maximum[:, None])
    score = score / tl.where(is_token, tl.sum(score, 1), 1.0)[:, None]
    # Scores are not negative: what is taken, or is no expert, comes after all others.
    remaining = tl.where(mask, score, -1.0)
    slots = tl.arange(0, SLOTS)
    top = tl.full((TOKENS, SLOTS), 0.0, tl.float32)
    for slot in tl.static_range(COUNT):
        best, chosen = tl.max(remaining, 1, return_indices=True, return_indices_tie_break_left=True)
        top = tl.where(slots[None, :] == slot, best[:, None], top)
        tl.store(experts + token * COUNT + slot, chosen.to(tl.int64), mask=is_token)
        remaining = tl.where(expert[None, :] == chosen[:, None], -1.0, remaining)
    if NORMED:
        top = top / tl.maximum(tl.sum(top, 1), floor)[:, None]
    target = token[:, None] * COUNT + slots[None, :]
    tl.store(weights + target, top * factor, mask=is_token[:, None] & (slots < COUNT)[None, :])


def top_k_softmax(
    logits: Tensor, count: int, *, floor: float | None = None, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """float32 logits [T, E] to the `count` largest of each row's softmax, float32 [T, count], and
    their experts, int64 [T, count]; the twin is `layers.moe.routers.top_k`.

    Args:
        floor: weights are divided by their sum, or by this number if that is more; None: they are
            not.
        factor: what they are multiplied by.
    """
    tokens, num_experts = logits.shape
    weights = torch.empty((tokens, count), dtype=torch.float32, device=logits.device)
    experts = torch.empty((tokens, count), dtype=torch.int64, device=logits.device)
    width = power(num_experts)
    each = max(1, min(16, 2048 // width))
    if tokens:
        launch: Any = _top_k[(triton.cdiv(tokens, each),)]
        launch(
            *(logits.contiguous(), weights, experts, tokens, floor or 0.0, factor),
            NUM_EXPERTS=num_experts,
            COUNT=count,
            NORMED=floor is not None,
            SLOTS=power(count),
            TOKENS=each,
            WIDTH=width,
            num_warps=4,
        )
    return weights, experts
