"""A ragged step of state-space layers, without the layers."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent.ssm_states import Fading, PlainStates, Shape, Snapshots, Walker
from baton_worker.layers.ssm.page_segments import Cut, Segments

CASES = {
    "groups of heads, two blocks in a page": (Shape(4, 2, 5, 7, 3, 16), 24, torch.bfloat16),
    "several chunks in a page": (Shape(1, 1, 20, 40, 0, 20), 70, torch.float32),
    "many channels, small pages": (Shape(1, 1, 80, 100, 0, 80), 4, torch.float32),
    "half precision": (Shape(2, 1, 16, 9, 18, 0), 16, torch.float16),
}
COUNTS, STARTS = [73, 1, 40, 5, 1], [0, 24, 30, 21, 9]
"""Rows that begin, go on within a page, begin a page, and end anywhere."""


def plan(page_size: int, device: torch.device) -> tuple[Segments, int]:
    """The step above, and how many pages there are."""
    each = -(-73 // page_size) + 1
    tables = torch.arange(5 * each).view(each, 5).T.tolist()
    batch = AttentionBatch.build(COUNTS, STARTS, tables, page_size, device)
    return Cut().plan(batch, Cut()), 5 * each


class StateStep:
    """Pages that are parts of something larger, how they fade, and queries."""

    def __init__(
        self, shape: Shape, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.shape = shape
        self.segments, count = plan(page_size, device)
        width = max(shape.key + 80, shape.value + shape.heads * shape.value_dim + 2)
        memory = torch.randn(count, page_size * width + 11, generator=generator)
        pages = memory[:, 4 : 4 + page_size * width].unflatten(1, (page_size, 1, 1, width))
        self.tokens = pages.to(device, dtype)
        state = shape.heads, shape.key_dim, shape.value_dim
        self._states = torch.randn(count, *state, generator=generator).to(device)
        sizes = count, shape.heads, page_size
        rates, weight = torch.rand(2, *sizes, generator=generator).to(device)
        self._fading = Fading(-0.3 * rates.cumsum(-1), weight + 0.5)
        query = torch.randn(sum(COUNTS), shape.groups, shape.key_dim, generator=generator)
        self.query = query.to(device, dtype).float()

    def fading(self, pages: Tensor) -> Fading:
        return Fading(*(part[pages] for part in self._fading))

    def walked(self, kernel: Walker, kept: Snapshots) -> Tensor:
        """The outputs of a kernel of chains."""
        chains = self.segments.chains
        return kernel.walk(kept, self.query, chains, self.fading(chains.pages))

    def plain(self, kept: Snapshots) -> Tensor:
        """Those of the twin."""
        fading = self.fading(self.segments.pages)
        return self.segments.run(PlainStates(self.shape), kept, self.query, fading)

    def pages(self) -> Snapshots:
        """The same for each call; what is written to states stays there."""
        return Snapshots(self.tokens, self._states.clone())
