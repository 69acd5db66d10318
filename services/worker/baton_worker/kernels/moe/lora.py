"""Low-rank products of adapters in the experts of one layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from baton_worker.kernels.linear import LinearKernel
from baton_worker.kernels.lora import LoraKernel, TokenAdapters, lora_kernel
from baton_worker.kernels.moe.experts import Gate

Slots: TypeAlias = npt.NDArray[np.int64]


class ExpertLora:
    """LoRA on both products of each expert.

    Args:
        tokens: which adapter each token has.
        num_experts: experts of the layer.
        first: rows of the first product by part: gate and up, or up alone.
        hidden: channels of an expert's input and output.
        size: channels between its products.
        like: a tensor of the device and the dtype of the inputs.
    """

    def __init__(
        self,
        tokens: TokenAdapters,
        num_experts: int,
        first: Sequence[int],
        hidden: int,
        size: int,
        like: Tensor,
    ) -> None:
        self._tokens = tokens
        # A token visits an expert once, so an expert has no more visits than a step has tokens.
        self.visits = TokenAdapters(tokens.max_loras, len(tokens.slots), like.device)
        """The adapter of each visit to one expert; kernels point to its slots."""
        experts = range(num_experts)
        self.first: list[LoraKernel] = [
            lora_kernel(hidden, first, self.visits, like) for _ in experts
        ]
        self.down: list[LoraKernel] = [
            lora_kernel(size, [hidden], self.visits, like) for _ in experts
        ]
        self._adapted = set[int]()

    def mark(self, slot: int, adapted: bool) -> None:
        """Say whether the adapter of a slot has products of these experts."""
        self._adapted.discard(slot)
        self._adapted |= {slot} if adapted else set()

    def slots(self, visits: Tensor, per_token: int) -> Slots | None:
        """The number of the adapter of each visit, int64 [V] as `visits`, -1 for none; None if no
        token of the step has products here."""
        if not self._adapted or self._adapted.isdisjoint(self._tokens.host.tolist()):
            return None
        numbers: Slots = self._tokens.host[(visits // per_token).cpu().numpy()]
        return np.where(np.isin(numbers, [*self._adapted]), numbers, -1)

    def run(
        self,
        expert: int,
        inputs: Tensor,
        slots: Slots,
        products: tuple[LinearKernel, LinearKernel],
        gate: Gate,
    ) -> Tensor:
        """The visits [n, hidden] of one expert, whose adapters are `slots`, through its products
        with what the adapters add: [n, hidden]."""
        self.visits.write(slots)
        first, second = products
        if first.applies_gate:
            inner = first(inputs, self.first[expert].delta(inputs))
        else:
            inner = gate(self.first[expert].add(inputs, first(inputs)))
        return self.down[expert].add(inner, second(inner))
