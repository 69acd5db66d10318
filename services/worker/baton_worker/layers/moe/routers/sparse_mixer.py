"""SparseMixer-v2 (GRIN, Liu et al. 2024, arXiv:2409.12136); depends on one token alone."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.moe.routers.base import Routing, largest


def sparse_mixer(logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
    """The experts with the highest logits, one after the other. The weight of each is its softmax
    over those not chosen before it whose logits are near it: relative to the larger of both, the
    distance is at most twice the parameter `jitter`."""
    jitter = float(dict(settings.parameters).get("jitter", 0.01))  # type: ignore[arg-type]
    experts = largest(logits, settings.top_k)
    left, weights = logits, list[Tensor]()
    for chosen in experts.split(1, dim=-1):
        highest = logits.gather(-1, chosen)
        distance = (highest - logits) / torch.maximum(logits.abs(), highest)
        near = left.masked_fill(distance > 2 * jitter, float("-inf"))
        weights.append(near.softmax(-1).gather(-1, chosen))
        left = left.scatter(-1, chosen, float("-inf"))
    return Routing(experts, torch.cat(weights, dim=-1))
