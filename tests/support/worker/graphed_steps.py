"""Steps of a graphed model, compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.graphs import GraphedModel, Sizes
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kv_cache import KVCache, page_groups
from baton_worker.models.decoder import Model
from tests.fakes.replayed_steps import Counting

CPU, PAGE, BLOCKS = torch.device("cpu"), 4, 24

SIZES = Sizes((1, 2, 4, 8, 16), PAGE * BLOCKS)


@dataclass
class Texts:
    """Rows that decode tokens which are the same for all who look at this class."""

    loaded: LoadedModel
    num_rows: int
    lengths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        dtype = self.loaded.model.dtype
        groups = page_groups(self.loaded.spec, PAGE, dtype)
        number = len(groups.windows) * self.num_rows * BLOCKS
        kind: dict[str, Any] = {"dtype": dtype, "device": CPU, "groups": groups}
        self.cache = KVCache(self.loaded.spec, number, PAGE, **kind, spare=len(groups.windows))
        order = np.random.default_rng(0).permutation(number).astype(np.int32)
        self.tables = order.reshape(len(groups.windows), self.num_rows, BLOCKS)
        self.lengths = [0] * self.num_rows

    def step(self, model: Any, rows: Sequence[int], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Hidden states and logits of so many new tokens of these rows."""
        starts = [self.lengths[row] for row in rows]
        batch = AttentionBatch.build_all(
            counts, starts, self.tables, PAGE, CPU, slots=np.array(rows)
        )
        row, positions = batch.flat()
        tokens = torch.from_numpy((np.array(rows)[row] * 31 + positions * 7) % 200 + 5)
        for number, count in zip(rows, counts, strict=True):
            self.lengths[number] += count
        hidden = model.forward(tokens, torch.from_numpy(positions), batch, self.cache)
        return hidden, model.logits(hidden)


def graphed(texts: Texts, sizes: Sizes = SIZES) -> tuple[GraphedModel, Counting]:
    counts, model = Counting(), texts.loaded.model
    assert isinstance(model, Model)
    made = GraphedModel(model, texts.cache, sizes, counts, CPU)
    made.capture()
    assert counts.captured == sizes.number
    return made, counts


Steps: TypeAlias = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Rows of each step, and how many new tokens each has."""


PROMPTS = range(11), [3 + 2 * row for row in range(11)]


WHO = [range(11), range(11), [3], range(11), [0, 10], [7, 2, 5], range(9), [4], [4, 3], range(11)]
"""Rows of each step: others join and leave, and what was a row is padding in the next."""


DECODED = (PROMPTS, *((rows, [1] * len(rows)) for rows in WHO * 2))


def check(
    loaded: LoadedModel,
    close: Any,
    make: Callable[[Texts], tuple[GraphedModel, Counting]] = graphed,
    steps: Steps = DECODED,
) -> tuple[Texts, int]:
    """By default prompts, then decode steps over several pages, beside an eager twin; every step
    compared. Returns the texts that were replayed, and how many steps of them."""
    eager, replayed = Texts(loaded, 11), Texts(loaded, 11)
    model, counts = make(replayed)
    for rows, new in steps:
        wanted, found = eager.step(loaded.model, rows, new), replayed.step(model, rows, new)
        for ours, theirs in zip(found, wanted, strict=True):
            close(ours, theirs)
        assert torch.equal(found[1].argmax(1), wanted[1].argmax(1))
    for ours, theirs in zip(replayed.cache.layers, eager.cache.layers, strict=True):
        close(ours[: replayed.cache.num_pages], theirs[: eager.cache.num_pages])
    return replayed, counts.replays


def bits(ours: Tensor, theirs: Tensor) -> None:
    if CpuLinear.refuses(torch.zeros(1, 1)) is None:
        # As bytes: what pages hold for another group may be no number here.
        assert torch.equal(*(x.contiguous().view(torch.uint8) for x in (ours, theirs)))
    else:  # oneDNN's products depend on the number of rows.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
