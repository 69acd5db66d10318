"""Top-k routing; depends on one token alone."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels import triton
from baton_worker.kernels.moe.routing import cpu_router
from baton_worker.layers.moe.routers.base import (
    SCORES,
    Routing,
    largest,
    norm_floor,
    weighted,
)


def top_k(logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
    """The highest scores per token: plain, bias-corrected or limited to the best groups."""
    if _is_plain(settings, correction) and triton.runs(logits.device):
        from baton_worker.kernels.triton.top_k import top_k_softmax

        floor = None if settings.norm is None else norm_floor(settings)
        weights, experts = top_k_softmax(logits, settings.top_k, floor=floor, factor=settings.scale)
        return Routing(experts, weights)
    if (route := cpu_router(settings, logits.device)) is not None:
        return Routing(*route(logits, correction))
    scores = SCORES[settings.score](logits)
    choice = logits if settings.by_logits else scores
    if correction is not None:
        choice = choice + correction
    if settings.num_groups > 1:
        choice = _best_groups(choice, settings)
    experts = largest(choice, settings.top_k)
    return Routing(experts, weighted(scores.gather(-1, experts), settings))


def _is_plain(settings: spec.Router, correction: Tensor | None) -> bool:
    """Whether this is plain top-k of a softmax, whose weights may be divided by their sum."""
    plain = settings.score == "softmax" and settings.norm in (None, 1)
    return plain and correction is None and settings.num_groups <= 1


def _best_groups(choice: Tensor, settings: spec.Router) -> Tensor:
    """`choice` with every expert outside the best groups at -inf."""
    grouped = torch.unflatten(choice, -1, (settings.num_groups, -1))
    worth = grouped.topk(settings.group_width, dim=-1).values.sum(-1)
    is_best = torch.zeros_like(worth, dtype=torch.bool)
    is_best.scatter_(-1, largest(worth, settings.top_groups), True)
    return grouped.masked_fill(~is_best[..., None], float("-inf")).flatten(-2)
