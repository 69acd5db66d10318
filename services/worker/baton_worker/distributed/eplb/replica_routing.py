"""Which replica of an expert computes a visit, and how results come back.

    experts of a layer     e0 e1 | e0 e2       slots 0 1 of rank 0, 2 3 of rank 1
    visits of a step       e0 e1 e0 e2 e0      in the order of tokens, of all ranks
    their slots            0  1  2  3  0       the replicas of an expert in turn

A visit's result does not depend on the replica: all have the same weights, and its token's rank
adds up the results in the order of the token's experts (`BalancedExperts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton_worker.distributed.eplb.placement import Held


class ReplicaTable:
    """The slots of each expert of a layer.

    Args:
        held: the experts of each rank's slots, equally many on all.
        device: where visits are routed.
    """

    def __init__(self, held: Held, device: torch.device) -> None:
        experts = [expert for some in held for expert in some]
        self.slots_per_rank = len(held[0])
        self._num_experts = 1 + max(experts)
        slots = [[s for s, e in enumerate(experts) if e == one] for one in range(self._num_experts)]
        width = max(map(len, slots))
        self._replicated = width > 1
        # The last row is that of visits to no expert.
        rows = [[*some, *[-1] * (width - len(some))] for some in (*slots, [])]
        self._slots = torch.tensor(rows, device=device)
        counts = [len(some) for some in slots] + [1]
        self._counts = torch.tensor(counts, device=device)

    def slots(self, experts: Tensor) -> Tensor:
        """int64 [V]: the slot of each visit, -1 of one to no expert; `experts` are int64 [V]."""
        none = (experts < 0) | (experts >= self._num_experts)
        experts = torch.where(none, self._num_experts, experts)
        if not self._replicated:
            return self._slots[experts, 0]
        return self._slots[experts, _occurrences(experts) % self._counts[experts]]


def _occurrences(values: Tensor) -> Tensor:
    """int64 [V]: how many equal values there are before each one."""
    ordered, order = values.sort(stable=True)
    first = torch.searchsorted(ordered, ordered)
    counts = torch.arange(len(values), device=values.device) - first
    return torch.empty_like(counts).index_copy_(0, order, counts)


class VisitPlan(NamedTuple):
    """The visits of a step, as one rank sees them. A visit is a number token * width + place among
    the experts of its token."""

    local: Tensor
    """int64: visits that this rank computes, in their order."""
    slots: Tensor
    """int64: for each of them the local index of its expert."""
    counts: list[list[int]]
    """Number of visits by the rank that computes them and the rank that has their tokens."""
    returned: Tensor
    """int64: visits of this rank's tokens, counted from its first, in the order in which their
    results arrive: by the rank that computes them."""


def plan_visits(slots: Tensor, slots_per_rank: int, tokens: Sequence[int], rank: int) -> VisitPlan:
    """Plan the visits of int64 [T, width], the slot of each visit to an expert and -1 of all
    others; `tokens` is the number of tokens of each rank."""
    size, width = len(tokens), slots.shape[1]
    flat = slots.flatten()
    by = torch.where(flat < 0, size, flat // slots_per_rank)
    each = torch.tensor(tokens, device=flat.device) * width
    owners = torch.arange(size, device=flat.device).repeat_interleave(each)
    counts = torch.bincount(by * size + owners, minlength=(size + 1) * size)
    local = (by == rank).nonzero().flatten()
    first = sum(tokens[:rank]) * width
    mine = by[first : first + tokens[rank] * width]
    returned = mine.argsort(stable=True)[: int((mine < size).sum())]
    return VisitPlan(
        local,
        flat[local] - rank * slots_per_rank,
        counts.view(size + 1, size)[:size].tolist(),
        returned,
    )
