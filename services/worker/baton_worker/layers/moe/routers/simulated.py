"""Routers for load tests: the experts follow a distribution, not the model."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.moe.routers.base import Routing, largest


def balanced(logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
    """For load tests: token after token takes the next experts in turn; all weights are equal."""
    num_tokens, num_experts = logits.shape
    first = torch.arange(num_tokens, device=logits.device)[:, None] * settings.top_k
    experts = (first + torch.arange(settings.top_k, device=logits.device)) % num_experts
    return Routing(experts, _equal(experts))


def skewed(logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
    """For load tests: expert e is drawn with a chance in proportion to 1 / (e + 1)^`exponent`.

    The parameter `exponent` is 1 by default. The draw is the same in every step of as many tokens.
    """
    num_tokens, num_experts = logits.shape
    exponent = float(dict(settings.parameters).get("exponent", 1.0))  # type: ignore[arg-type]
    chance = torch.arange(1, num_experts + 1, dtype=torch.float32).pow(-exponent)
    generator = torch.Generator().manual_seed(num_tokens)
    # The largest of log(chance) + Gumbel noise are a draw without replacement.
    noise = torch.rand((num_tokens, num_experts), generator=generator).clamp_(min=1e-20)
    keys = chance.log() - (-noise.log()).log()
    experts = largest(keys, settings.top_k).to(logits.device)
    return Routing(experts, _equal(experts))


def _equal(experts: Tensor) -> Tensor:
    return torch.full(experts.shape, 1.0 / experts.shape[-1], device=experts.device)
