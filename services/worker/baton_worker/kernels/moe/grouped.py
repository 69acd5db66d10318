"""A pair of products per expert that has visits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import LinearKernel, fastest
from baton_worker.kernels.moe.dispatch import (
    COUNTED,
    combine,
    dispatch,
    gather_inputs,
    output_weights,
)
from baton_worker.kernels.moe.experts import Experts
from baton_worker.kernels.quantized_weights import KINDS, Rounding
from baton_worker.platform.malloc import release_pages


class GroupedExperts:
    """One pair of products per expert that has visits: a few tokens read a few experts.

    Each expert's weights are prepared once for the CPU, as a linear layer's are.
    """

    capture_blocker = COUNTED

    def __init__(self, experts: Experts) -> None:
        self._gate, self._weigh_input = experts.gate, experts.weigh_input
        refused = experts.fused is None or CpuLinear.refuses(experts.gate_up[0]) is not None
        self._fused, kind = None if refused else experts.fused, experts.quantised_as
        spent = experts.disposable
        self._gate_up = _linears(experts.gate_up, experts.gate_up_bias, kind, self._fused, spent)
        self._down = _linears(experts.down, experts.down_bias, kind, None, spent)
        pairs = [*zip(self._gate_up, experts.gate_up, strict=True)]
        pairs += zip(self._down, experts.down, strict=True)
        self.nbytes = sum(k.nbytes if isinstance(k, CpuLinear) else w.nbytes for k, w in pairs)

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """Never."""
        return None

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        visits, counts = dispatch(experts, len(self._down))
        given = gather_inputs(x, visits, weights, self._weigh_input)
        returned, first = torch.empty_like(given), 0
        for expert, count in enumerate(counts):
            if count:
                here = slice(first, first + count)
                inner = self._gate_up[expert](given[here])
                if self._fused is None:
                    inner = self._gate(inner)
                returned[here] = self._down[expert](inner)
                first += count
        return combine(returned, visits, output_weights(weights, self._weigh_input))


def _linears(
    weights: Tensor, biases: Tensor | None, kind: str | None, gate: str | None, disposable: bool
) -> Sequence[LinearKernel]:
    """One product per expert; every expert has scales of its own where `kind` asks for any."""
    kernels = list[LinearKernel]()
    for expert, weight in enumerate(weights):
        kernels.append(_linear(weight, None if biases is None else biases[expert], kind, gate))
        if disposable and isinstance(kernels[-1], CpuLinear):
            release_pages(weight.data_ptr(), weight.nbytes)
    return kernels


def _linear(
    weight: Tensor, bias: Tensor | None, kind: str | None, gate: str | None
) -> LinearKernel:
    """A product, rounded if its rows are whole groups, with a gate only where the CPU fuses it."""
    if kind is not None and weight.shape[-1] % KINDS[kind].multiple == 0:
        rounding = Rounding(weight, kind)
        if CpuLinear.refuses(rounding, weight) is None:
            return CpuLinear(rounding, bias, gate=gate, dtype=weight.dtype)
        rounding.into(weight)
    return fastest(weight, bias) if gate is None else CpuLinear(weight, bias, gate=gate)
