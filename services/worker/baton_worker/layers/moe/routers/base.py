"""What a router is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec

NOBODY = -1
"""The expert number of a slot that no expert fills; its weight is 0."""


class Routing(NamedTuple):
    """Where the tokens of a step go."""

    experts: Tensor
    """int64 [T, slots], distinct within a row, `NOBODY` where a slot is empty."""
    weights: Tensor
    """float32 [T, slots]."""


class Choose(Protocol):
    """The contract of a row of `ROUTERS`."""

    def __call__(self, logits: Tensor, settings: spec.Router, correction: Tensor | None) -> Routing:
        """float32 logits [T, num_experts + zero_experts], `correction` of one row, to a routing."""
        ...


# By way of float64 where the function works on single values: vector lanes and the values left
# over after them differ in the last bit of float32, and a token's scores would depend on its place.
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": lambda logits: logits.double().sigmoid().float(),
    "sqrt_softplus": lambda logits: F.softplus(logits.double()).sqrt().float(),
}
"""Logits to scores, by `spec.Router.score`."""


def largest(values: Tensor, count: int) -> Tensor:
    """Indices of the largest of each row, the lowest first among equals (topk promises none)."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def weighted(weights: Tensor, settings: spec.Router) -> Tensor:
    """The scores of the chosen to their weights: normed and scaled."""
    if settings.norm is not None:
        norm = torch.linalg.vector_norm(weights, settings.norm, dim=-1, keepdim=True)
        # Scores that all rounded to zero stay zero.
        weights = weights / norm.clamp(min=max(settings.norm_floor, torch.finfo(norm.dtype).tiny))
    return weights if settings.scale == 1.0 else weights * settings.scale
