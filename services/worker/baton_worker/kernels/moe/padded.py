"""Batched products over all experts, padded to the busiest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton_worker.kernels.moe.dispatch import (
    COUNTED,
    combine,
    dispatch,
    gather_inputs,
    output_weights,
)
from baton_worker.kernels.moe.experts import Experts, rounded
from baton_worker.kernels.moe.store import StackedStore
from baton_worker.kernels.weight import QuantizedWeight


class PaddedExperts:
    """Two batched products over [E, C, hidden], C the most visits of an expert (GShard's layout,
    Lepikhin et al. 2020, arXiv:2006.16668). For a device that would idle between small products."""

    capture_blocker = COUNTED
    takes_adapters = False

    def __init__(self, experts: Experts) -> None:
        self._experts = rounded(experts)
        self.nbytes = self._experts.nbytes

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """The CPU gains nothing from the padding."""
        return "it is for accelerators" if experts.down.device.type == "cpu" else None

    @classmethod
    def takes(cls, weight: QuantizedWeight) -> bool:
        """Floats only."""
        return False

    @property
    def store(self) -> StackedStore:
        """See `ExpertKernel`."""
        return StackedStore.of(self._experts)

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        e = self._experts
        visits, counts = dispatch(experts, e.down.shape[0])
        places = _places(counts).to(x.device)
        padded = x.new_zeros((len(counts), max(1, *counts), x.shape[-1]))
        padded.flatten(0, 1).index_copy_(
            0, places, gather_inputs(x, visits, weights, e.weigh_input)
        )
        inner = e.gate(_batched(padded, e.gate_up, e.gate_up_bias))
        returned = _batched(inner, e.down, e.down_bias).flatten(0, 1)
        weights = output_weights(weights, e.weigh_input)
        return combine(returned.index_select(0, places), visits, weights)


def _places(counts: Sequence[int]) -> Tensor:
    """int64 [V]: where each visit lies in [E * C], C the largest count."""
    each = torch.tensor(counts)
    first = torch.arange(len(counts)) * max(1, *counts) - (each.cumsum(0) - each)
    return torch.arange(int(each.sum())) + first.repeat_interleave(each)


def _batched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.bmm(x, weight.transpose(1, 2))
    return y if bias is None else y + bias[:, None]
