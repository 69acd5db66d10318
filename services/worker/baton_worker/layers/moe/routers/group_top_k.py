"""Top-k routing with an equal number of experts per group; depends on one token alone."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.kernels.moe.routing import cpu_router
from baton_worker.layers.moe.routers.base import (
    SCORES,
    Routing,
    largest,
    weighted,
)


def each_group(logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
    """The highest scores within each of `num_groups` equal groups, `top_k` in all (Intern-S1-Pro).

    If a group's experts share a device, all devices get equal work.

    Raises:
        ModelError: `num_experts` or `top_k` is not divisible by the number of groups.
    """
    groups = settings.num_groups
    if settings.num_experts % groups or settings.top_k % groups or settings.zero_experts:
        raise ModelError(
            f"{settings.num_experts} experts, of which {settings.top_k} are chosen, cannot be "
            f"dealt out to {groups} groups."
        )
    if (route := cpu_router(settings, logits.device, each_group=True)) is not None:
        return Routing(*route(logits, correction))
    scores = SCORES[settings.score](logits)
    choice = scores if correction is None else scores + correction
    grouped = torch.unflatten(choice, -1, (groups, -1))
    first = torch.arange(groups, device=logits.device)[:, None] * grouped.shape[-1]
    experts = (largest(grouped, settings.top_k // groups) + first).flatten(-2)
    return Routing(experts, weighted(scores.gather(-1, experts), settings))
