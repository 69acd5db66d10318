"""Learned queries that follow the states of an image through causal layers: see
`spec.VisionTower.queries`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.vision.grid import Size
from baton_worker.models.encoder import Stack, blocks_of


class Queries(nn.Module):
    """As many learned vectors as a part has states, behind them."""

    def __init__(self, tower: spec.VisionTower, context: BuildContext) -> None:
        super().__init__()
        here, hidden = replace(context, name=str), tower.stack.hidden
        self._counts = [count for _, count in tower.queries]
        self.tables = nn.ModuleList(
            Table(count, hidden, name, here) for name, count in tower.queries
        )

    def forward(
        self, x: Tensor, sizes: Sequence[Size], unpadded: Sequence[Size] | None = None
    ) -> Tensor:
        """[T, hidden] of parts of these sizes to [2 * T, hidden]."""
        counts = [rows * columns for rows, columns in sizes]
        parts = torch.split(x, counts)
        pairs = zip(parts, counts, strict=True)
        return torch.cat([half for part, count in pairs for half in (part, self._table(count))])

    def _table(self, count: int) -> Tensor:
        if count not in self._counts:
            raise ModelError(f"There are no {count} queries, only {self._counts}.")
        weight = self.tables[self._counts.index(count)].weight
        assert isinstance(weight, Tensor)
        return weight


class QueryStack(Stack):
    """States see those of their part; queries see these and the queries before them."""

    def __init__(self, tower: spec.VisionTower, context: BuildContext) -> None:
        super().__init__(tower.stack, blocks_of(tower.stack, context), context)

    def after(self, size: Size) -> Size:
        """Rows and columns of the last states: there are as many queries as patches."""
        return size

    def run(
        self, x: Tensor, sizes: Sequence[Size], unpadded: Sequence[Size] | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """[2 * T, hidden] of parts of these sizes, each behind its queries' states, to the final
        states [T, hidden] of the queries; no other states are kept."""
        counts = [2 * rows * columns for rows, columns in sizes]
        positions = torch.cat([torch.arange(count) for count in counts]).to(x.device)
        parts = torch.split(self(x, positions, counts), counts)
        return torch.cat([part[len(part) // 2 :] for part in parts]), {}
