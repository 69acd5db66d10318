"""Expert-choice routing: experts select tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.moe.routers.base import (
    NO_EXPERT,
    SCORES,
    Routing,
    largest,
    weighted,
)


def expert_choice(logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
    """Each expert takes its top tokens (Zhou et al. 2022, arXiv:2202.09368).

    The capacity of an expert is T * top_k / num_experts, rounded up, times the parameter `capacity`
    (1 by default). Tokens that no expert takes get a zero output. The routing of a token depends on
    the whole step, so use it only for models trained this way and for experiments.
    """
    num_tokens, num_experts = logits.shape
    factor = float(dict(settings.parameters).get("capacity", 1.0) or 1.0)  # type: ignore[arg-type]
    capacity = min(-(-int(num_tokens * settings.top_k * factor) // num_experts), num_tokens)
    scores = SCORES[settings.score](logits)
    choice = scores if correction is None else scores + correction
    chosen = torch.zeros_like(choice, dtype=torch.bool)
    chosen.scatter_(0, largest(choice.T, capacity).T, True)
    slots = max(int(chosen.sum(-1).max()), 1) if num_tokens else 1
    # Selected experts first, in ascending order of id.
    experts = largest(chosen.to(torch.int8), slots)
    filled = chosen.gather(-1, experts)
    weights = torch.where(filled, scores.gather(-1, experts), 0.0)
    return Routing(experts.masked_fill(~filled, NO_EXPERT), weighted(weights, settings))
