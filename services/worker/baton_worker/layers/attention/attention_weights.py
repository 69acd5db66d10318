"""Attention weights of alignment heads, which say where in a recording tokens are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class AlignedQueries(NamedTuple):
    """Tokens of one sequence whose weights are wanted."""

    slot: int
    """Of the sequence."""
    rows: slice
    """Indices among the tokens that see states."""
    table: Tensor
    """int64 [any]: pages of the states that they see."""
    num_seen: int
    """States that they see."""
    num_states: int
    """The first ones of these, whose weights are wanted."""


class AttentionWeights:
    """The weights of one step, by slot. Filled by the layers, in their order."""

    def __init__(self, queries: Iterable[AlignedQueries]) -> None:
        self._queries = tuple(queries)
        self._layers: dict[int, list[Tensor]] = {one.slot: [] for one in self._queries}

    @property
    def slots(self) -> list[int]:
        """Slots with tokens among the step's whose weights are wanted."""
        return list(self._layers)

    def of(self, slot: int) -> Tensor:
        """float32 [heads, tokens, num_states]."""
        return torch.cat(self._layers[slot])

    def add(self, query: Tensor, pages: Tensor, heads: Sequence[int], scale: float) -> None:
        """Add those of one layer.

        Args:
            query: [R, num_heads, head_dim] of all tokens that see states.
            pages: [num_pages, page_size, 2, num_kv_heads, head_dim].
            heads: which of them align.
        """
        shared = query.shape[1] // pages.shape[3]
        selected = torch.tensor(heads, device=query.device)
        for one in self._queries:
            keys = pages[one.table, :, 0].flatten(0, 1)[: one.num_seen, selected // shared]
            queries = query[one.rows, selected].transpose(0, 1).float() * scale
            scores = queries @ keys.permute(1, 2, 0).float()
            self._layers[one.slot].append(scores.softmax(-1)[..., : one.num_states])
