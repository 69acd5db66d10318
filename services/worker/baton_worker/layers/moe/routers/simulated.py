"""Routers for load tests: the experts follow a distribution, not the model."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.moe.routers.base import Routing, largest


def balanced(logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
    """For load tests: consecutive tokens take consecutive experts; all weights are equal."""
    num_tokens, num_experts = logits.shape
    first = torch.arange(num_tokens, device=logits.device)[:, None] * settings.top_k
    experts = (first + torch.arange(settings.top_k, device=logits.device)) % num_experts
    return Routing(experts, _equal(experts))


def skewed(logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
    """For load tests: expert e is drawn with probability proportional to 1 / (e + 1)^`exponent`.

    The parameter `exponent` is 1 by default. Steps of equal size get the same draw.
    """
    num_tokens, num_experts = logits.shape
    exponent = float(dict(settings.parameters).get("exponent", 1.0))  # type: ignore[arg-type]
    chance = torch.arange(1, num_experts + 1, dtype=torch.float32).pow(-exponent)
    generator = torch.Generator().manual_seed(num_tokens)
    # Gumbel top-k: the largest log-probabilities plus noise sample without replacement.
    noise = torch.rand((num_tokens, num_experts), generator=generator).clamp_(min=1e-20)
    keys = chance.log() - (-noise.log()).log()
    experts = largest(keys, settings.top_k).to(logits.device)
    return Routing(experts, _equal(experts))


def _equal(experts: Tensor) -> Tensor:
    return torch.full(experts.shape, 1.0 / experts.shape[-1], device=experts.device)
