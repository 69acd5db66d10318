"""The interface of a router."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec

NO_EXPERT = -1
"""The expert id of an empty slot; its weight is 0."""


class Routing(NamedTuple):
    """Experts and weights of a step's tokens."""

    experts: Tensor
    """int64 [T, slots], distinct within a row, `NO_EXPERT` where a slot is empty."""
    weights: Tensor
    """float32 [T, slots]."""


class Choose(Protocol):
    """The interface of the functions in `ROUTERS`."""

    def __call__(self, logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
        """Route float32 logits [T, num_experts + zero_experts]; `correction` is one row."""
        ...


# Elementwise functions go through float64: vector code and the scalar remainder differ in the last
# bit of float32, so a token's scores would depend on its place in the tensor.
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": lambda logits: logits.double().sigmoid().float(),
    "sqrt_softplus": lambda logits: F.softplus(logits.double()).sqrt().float(),
}
"""Logits to scores, by `spec.Router.score`."""


def largest(values: Tensor, count: int) -> Tensor:
    """Indices of the largest values per row, the lowest index first among equals (torch.topk
    guarantees no order)."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def norm_floor(settings: spec.Router) -> float:
    """The least norm that weights are divided by: zeros stay zero if all scores round to zero."""
    return max(settings.norm_floor, torch.finfo(torch.float32).tiny)


def weighted(weights: Tensor, settings: spec.Router) -> Tensor:
    """Convert scores of the selected experts to weights: normalised and scaled."""
    if settings.norm is not None:
        norm = torch.linalg.vector_norm(weights, settings.norm, dim=-1, keepdim=True)
        weights = weights / norm.clamp(min=norm_floor(settings))
    return weights if settings.scale == 1.0 else weights * settings.scale
