"""Grouped expert kernel: two products per expert that has visits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.linear import (
    LinearKernel,
    LinearSpec,
    LinearWeight,
    choose,
    has_kernel,
)
from baton_worker.kernels.moe.cpu_experts import CpuExperts
from baton_worker.kernels.moe.dispatch import (
    COUNTED,
    combine,
    dispatch,
    gather_inputs,
    output_weights,
)
from baton_worker.kernels.moe.experts import Experts, PackedParts
from baton_worker.kernels.moe.lora import Slots
from baton_worker.kernels.moe.store import KernelStore
from baton_worker.kernels.quantized_weights import Rounding
from baton_worker.kernels.weight import QuantizedWeight
from baton_worker.platform.malloc import release_pages


class GroupedExperts:
    """Two products per expert that has visits, so a few tokens read a few experts. Each expert's
    weights are prepared once, like those of a linear layer, and stay quantised. The products of the
    CPU kernels, without adapters, are one call.
    """

    takes_adapters = True

    def __init__(self, experts: Experts) -> None:
        self._gate, self._weigh_input = experts.gate, experts.weigh_input
        self._lora = experts.lora
        visits = None if self._lora is None else self._lora.visits.slots
        first = _Product(experts.gate_up, experts.packed_gate_up, experts.gate_up_bias)
        second = _Product(experts.down, experts.packed_down, experts.down_bias)
        self._gate_up = first.kernels(experts, experts.fused, visits)
        self._down = second.kernels(experts)
        pairs = [*zip(self._gate_up, experts.gate_up, strict=True)]
        pairs += zip(self._down, experts.down, strict=True)
        self.nbytes = sum(kernel.nbytes or weight.nbytes for kernel, weight in pairs)
        self._whole: CpuExperts | None = None
        products = self._gate_up, self._down
        if CpuExperts.refuses(*products, experts) is None:
            self._whole = CpuExperts(*products, experts)

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """Never."""
        return None

    @classmethod
    def takes(cls, weight: QuantizedWeight) -> bool:
        """All that linear layers take."""
        return True

    @property
    def store(self) -> KernelStore:
        """See `ExpertKernel`."""
        return KernelStore({"gate_up": self._gate_up, "down": self._down}, self._link)

    def _link(self) -> None:
        if self._whole is not None:
            self._whole.link()

    @property
    def capture_blocker(self) -> str | None:
        """See `ExpertKernel`."""
        return COUNTED if self._whole is None or self._lora is not None else None

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        if self._whole is not None and self._lora is None:
            return self._whole(x, experts, weights)
        visits, counts = dispatch(experts, len(self._down))
        inputs = gather_inputs(x, visits, weights, self._weigh_input)
        returned, first = torch.empty_like(inputs), 0
        slots = None if self._lora is None else self._lora.slots(visits, weights.shape[1])
        for expert, count in enumerate(counts):
            if count:
                here = slice(first, first + count)
                returned[here] = self._visits(expert, inputs[here], slots, here)
                first += count
        return combine(returned, visits, output_weights(weights, self._weigh_input))

    def _visits(self, expert: int, inputs: Tensor, slots: Slots | None, here: slice) -> Tensor:
        """[n, hidden] to [n, hidden], the visits of one expert."""
        products = self._gate_up[expert], self._down[expert]
        if slots is not None and self._lora is not None:
            return self._lora.run(expert, inputs, slots[here], products, self._gate)
        inner = products[0](inputs)
        return products[1](inner if products[0].applies_gate else self._gate(inner))


class _Product(NamedTuple):
    """Kernels of one of the two products, for every expert."""

    weights: Tensor
    packed: Sequence[PackedParts | None]
    biases: Tensor | None

    def kernels(
        self, experts: Experts, gate: str | None = None, visits: Tensor | None = None
    ) -> list[LinearKernel]:
        """One kernel per expert; rounded experts have their own scales. `visits`: see
        `LinearSpec.adapters`."""
        packed = self.packed or [None] * len(self.weights)
        result = list[LinearKernel]()
        for expert, (weight, parts) in enumerate(zip(self.weights, packed, strict=True)):
            operand = parts or (_perhaps_rounded(weight, experts.quantised_as),)
            bias = None if self.biases is None else self.biases[expert]
            result.append(choose(LinearSpec(operand, bias, weight, gate=gate, adapters=visits)))
            if experts.disposable and result[-1].nbytes and weight.nbytes:
                release_pages(weight.data_ptr(), weight.nbytes)
        return result


def _perhaps_rounded(weight: Tensor, kind: str | None) -> LinearWeight:
    """The weight to pack: rounded in place if no kernel runs the kind, unchanged if its rows are
    not whole groups."""
    if kind is None or weight.shape[-1] % KINDS[kind].multiple:
        return weight
    rounding = Rounding(weight, kind)
    if has_kernel(rounding, weight):
        return rounding
    rounding.into(weight)
    return weight
