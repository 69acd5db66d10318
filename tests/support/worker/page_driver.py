"""A driver small enough to read: pages in a scrambled order, one ragged step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache import KVCache
from baton_worker.layers.media_embeddings import MediaEmbeddings

CPU = torch.device("cpu")


@dataclass
class Driver:
    """Keeps the block table and the length of each row, as a runner would."""

    loaded: LoadedModel
    num_rows: int
    page_size: int = 4
    pages_per_row: int = 64
    codes: KVCodes | None = None
    layout: Layout = Layout.NHD
    lengths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        dtype = self.loaded.model.dtype
        num_pages = self.num_rows * self.pages_per_row
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(1)).tolist()
        self.lengths = [0] * self.num_rows
        self.tables = [order[row :: self.num_rows] for row in range(self.num_rows)]
        self.cache = KVCache(
            self.loaded.spec,
            num_pages,
            self.page_size,
            dtype=dtype,
            device=CPU,
            codes=self.codes,
            layout=self.layout,
        )

    def step(
        self,
        new: dict[int, Sequence[int]],
        media: MediaEmbeddings | None = None,
        last_keys: Sequence[int] | None = None,
    ) -> dict[int, torch.Tensor]:
        """Feed each named row its new tokens, with `media` in the place of some; returns float32
        logits [tokens, vocab] per row. `last_keys` are as in `AttentionBatch`."""
        logits = self.loaded.model.logits(self.hidden(new, media, last_keys))
        return dict(zip(new, logits.split([len(tokens) for tokens in new.values()]), strict=True))

    def hidden(
        self,
        new: dict[int, Sequence[int]],
        media: MediaEmbeddings | None = None,
        last_keys: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Feed each named row its new tokens; returns hidden states [T, hidden], row after row."""
        rows = list(new)
        counts = [len(new[row]) for row in rows]
        starts = [self.lengths[row] for row in rows]
        batch = AttentionBatch.build(
            counts, starts, [self.tables[row] for row in rows], self.page_size, CPU
        )
        if last_keys is not None:
            batch = batch.with_last_keys(np.array(last_keys))
        tokens = torch.tensor([token for row in rows for token in new[row]])
        positions = torch.cat([torch.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
        more = {} if media is None else {"media": media}
        hidden: torch.Tensor = self.loaded.model(tokens, positions, batch, self.cache, **more)
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count
        return hidden

    def share(self, row: int, with_row: int, num_tokens: int) -> None:
        """Give a fresh row the pages of another one's first tokens, as a prefix cache hit does."""
        assert num_tokens % self.page_size == 0 and self.lengths[row] == 0
        num_pages = num_tokens // self.page_size
        self.tables[row][:num_pages] = self.tables[with_row][:num_pages]
        self.lengths[row] = num_tokens

    def greedy(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """Prefill all prompts in one step, then decode them together."""
        return self.decode(self.step(dict(enumerate(prompts))), num_tokens)

    def decode(self, logits: dict[int, torch.Tensor], num_tokens: int) -> list[list[int]]:
        """Continue the rows of a step greedily, together; `num_tokens` each, row after row."""
        outputs: dict[int, list[int]] = {row: [] for row in logits}
        while True:
            for row, last in logits.items():
                outputs[row].append(int(last[-1].argmax()))
            if len(outputs[row]) == num_tokens:
                return list(outputs.values())
            logits = self.step({row: tokens[-1:] for row, tokens in outputs.items()})
