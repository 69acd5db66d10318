"""Inputs of cross-attention layers in a step: the KV of encoder states, in pages of their own.

    item    its pages        token of the step    sees
    a       0  1  2          0  text before a     nothing
    b       3  4             1  placeholder of a  a
                             2  text              a

Every token that sees states is a row of its own with one query over all keys of its item, as a
decode step has them: its numbers depend neither on other tokens nor on how its prompt is cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch, AttentionSpec, Backend
from baton_worker.layers.attention.attention_weights import AttentionWeights


class CrossWrite(NamedTuple):
    """States whose KV this step writes."""

    pages: Tensor
    """int64 [any]: room for all states."""
    states: Tensor
    """[n, width], in the dtype of the model."""


class CrossInputs(NamedTuple):
    """The states that each token of a step sees. At least one token sees some."""

    places: Tensor
    """int64 [R], ascending: the tokens that do, on the flat token axis."""
    items: Tensor
    """int64 [R]: number of the row of `tables` that each of them sees."""
    tables: Tensor
    """int32 [items, any]: pages, padded with any number."""
    lengths: Tensor
    """int64 [items]: number of states."""
    writes: tuple[CrossWrite, ...]
    num_pages: int
    """Pages that there are to be."""
    weights: AttentionWeights | None = None
    """Takes what alignment heads attend to; None: that is not wanted."""


@dataclass(frozen=True, slots=True)
class CrossStep:
    """`CrossInputs`, planned for the backends of the layers."""

    places: Tensor
    """int64 [R], on the device."""
    plans: dict[AttentionSpec, Any]
    writes: tuple[tuple[Tensor, Tensor], ...]
    """Slots int64 [n] and states [n, width]."""
    weights: AttentionWeights | None = None
    """See `CrossInputs`."""

    @classmethod
    def plan(
        cls,
        inputs: CrossInputs,
        backends: Iterable[tuple[AttentionSpec, Backend]],
        page_size: int,
        device: torch.device,
    ) -> CrossStep:
        """Compute the indices of a step on the host."""
        items, tables = inputs.items.cpu().numpy(), inputs.tables.cpu().numpy()
        batch = AttentionBatch.build_all(
            [1] * len(items),
            inputs.lengths.cpu().numpy()[items] - 1,
            tables[None],
            page_size,
            device,
            slots=items,
        )
        plans = {call: backend.plan(batch, call) for call, backend in backends}
        writes = ((_slots(w, page_size).to(device), w.states.to(device)) for w in inputs.writes)
        return cls(inputs.places.to(device), plans, tuple(writes), inputs.weights)


def _slots(write: CrossWrite, page_size: int) -> Tensor:
    """int64 [n]: page * page_size + offset of each state."""
    offsets = torch.arange(page_size, device=write.pages.device)
    slots = write.pages[:, None] * page_size + offsets
    return slots.flatten()[: len(write.states)]
