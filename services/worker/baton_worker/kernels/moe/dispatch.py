"""Dispatch of tokens to experts, and combination of the results. A (token, slot) pair is one visit
of a token to an expert. Every kernel writes each visit's result to its own row and adds a token's
rows in slot order, in float32, so the sum does not depend on other tokens of the step.

    tokens     t0 t1 t2         experts [[2, 0], [0, 1], [2, 1]]
    visits     0  1  2  3  4  5   (token * slots + slot)
    by expert  e0: 1 2   e1: 3 5   e2: 0 4
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels.moe import cpu_experts

COUNTED = "the host waits for the number of tokens that each expert gets"
"""The capture blocker of kernels that `dispatch`."""


class Dispatch(NamedTuple):
    """Visits sorted by expert, in token order within an expert."""

    visits: Tensor
    """int64 [V]: visits to experts 0 .. E - 1; the others are left out."""
    counts: list[int]
    """Visits to each expert."""


def dispatch(experts: Tensor, num_experts: int) -> Dispatch:
    """Group the visits of int64 [T, slots] by expert. Synchronizes with the device for the
    counts."""
    flat = experts.flatten()
    flat = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)
    counts = torch.bincount(flat, minlength=num_experts).tolist()[:num_experts]
    return Dispatch(flat.argsort(stable=True)[: sum(counts)], counts)


def combine(returned: Tensor, visits: Tensor, weights: Tensor) -> Tensor:
    """Undo `dispatch`: returned [V, hidden] of `visits` to [T, hidden], weighted sums."""
    num_tokens, slots = weights.shape
    size, complete = returned.shape[-1], visits.numel() == weights.numel()
    make = returned.new_empty if complete else returned.new_zeros
    rows = make((num_tokens * slots, size)).index_copy_(0, visits, returned)
    return weighted_sum(rows.view(num_tokens, slots, size), weights)


def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """rows [T, slots, hidden] times float32 weights [T, slots], added in slot order."""
    if (summed := cpu_experts.weighted_sum(rows, weights)) is not None:
        return summed
    total = rows[:, 0] * weights[:, 0, None]
    for slot in range(1, rows.shape[1]):
        total = total.addcmul(rows[:, slot], weights[:, slot, None])
    return total.to(rows.dtype)


def gather_inputs(x: Tensor, visits: Tensor, weights: Tensor, weigh_input: bool) -> Tensor:
    """[V, hidden]: input of each visit."""
    inputs = x.index_select(0, visits // weights.shape[1])
    if weigh_input:
        inputs = (inputs * weights.flatten()[visits, None]).to(x.dtype)
    return inputs


def output_weights(weights: Tensor, weigh_input: bool) -> Tensor:
    return torch.ones_like(weights) if weigh_input else weights
