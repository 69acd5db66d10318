"""A driver small enough to read: pages in a scrambled order, one ragged step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.kv import KVCache
from baton_worker.models import LoadedModel

CPU = torch.device("cpu")


@dataclass
class Driver:
    """Keeps the block table and the length of each row, as a runner would."""

    loaded: LoadedModel
    num_rows: int
    page_size: int = 4
    pages_per_row: int = 64
    lengths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        dtype = self.loaded.model.norm.weight.dtype
        num_pages = self.num_rows * self.pages_per_row
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(1)).tolist()
        self.lengths = [0] * self.num_rows
        self.tables = [order[row :: self.num_rows] for row in range(self.num_rows)]
        self.cache = KVCache(self.loaded.spec, num_pages, self.page_size, dtype=dtype, device=CPU)

    def step(self, new: dict[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """Feed each named row its new tokens; returns float32 logits [tokens, vocab] per row."""
        rows = list(new)
        counts = [len(new[row]) for row in rows]
        starts = [self.lengths[row] for row in rows]
        batch = AttentionBatch.build(
            counts, starts, [self.tables[row] for row in rows], self.page_size, CPU
        )
        tokens = torch.tensor([token for row in rows for token in new[row]])
        positions = torch.cat([torch.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
        hidden = self.loaded.model(tokens, positions, batch, self.cache)
        logits = self.loaded.model.logits(hidden).split(counts)
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count
        return dict(zip(rows, logits, strict=True))

    def greedy(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """Prefill all prompts in one step, then decode them together."""
        outputs: list[list[int]] = [[] for _ in prompts]
        new: dict[int, Sequence[int]] = dict(enumerate(prompts))
        for _ in range(num_tokens):
            for row, logits in self.step(new).items():
                outputs[row].append(int(logits[-1].argmax()))
                new[row] = outputs[row][-1:]
        return outputs


@pytest.fixture(scope="session")
def driver() -> type[Driver]:
    return Driver
