"""A step cut where pages begin: for layers that carry a state from page to page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.states import Blocks, Fading, Kernel, Snapshots
from baton_worker.layers.short_conv import Earlier

Column: TypeAlias = NDArray[np.int64]


class Turn(NamedTuple):
    """Pages that begin, each with the one before it: int64 [n] both."""

    before: Tensor
    begun: Tensor


@dataclass(frozen=True, slots=True)
class Segments:
    """A step cut where pages begin."""

    turns: list[Turn]
    """Of each sequence the first page that begins, then of each the second, ..."""
    blocks: Blocks
    """The new tokens of each page."""
    earlier: Earlier
    """What a convolution reads of the tokens before each."""
    pages: Tensor
    """int64: the pages before those that begin, turn by turn, then those of blocks."""

    def run(self, kernel: Kernel, kept: Snapshots, query: Tensor, fading: Fading) -> Tensor:
        """Give pages that begin their states, and let queries read: see `kernels.states`. `fading`
        is that of `pages`."""
        counts = [*(len(turn.begun) for turn in self.turns), len(self.blocks.pages)]
        *carried, read = map(Fading, *(torch.split(part, counts) for part in fading))
        for (before, begun), part in zip(self.turns, carried, strict=True):
            kernel.carry(kept, before, begun, part)
        return kernel.read(kept, query, self.blocks, read)


@dataclass(frozen=True, slots=True)
class Cut:
    """Plans a step like an attention backend does; the same for all layers of a group whose
    convolutions, if they have any, have as many taps."""

    taps: int = 1
    uncaptured: ClassVar[str] = "a layer with a state looks on the host for pages that begin"

    def plan(self, batch: AttentionBatch, call: Cut) -> Segments:
        """Cut the step, once for all layers of a group."""
        assert batch.trees is None and batch.ranges is None, "every earlier token counts"
        row, position = batch.flat()
        turns, blocks = _turns(batch, row, position), _blocks(batch, row, position)
        pages = torch.cat([*(turn.before for turn in turns), blocks.pages])
        return Segments(turns, blocks, Earlier.of(batch, call.taps), pages)


def _blocks(batch: AttentionBatch, row: Column, position: Column) -> Blocks:
    """The tokens of a row follow each other, so a block begins where row or page changes."""
    page, place = np.divmod(position, batch.page_size)
    fresh = np.ones(len(row), np.bool_)
    fresh[1:] = (row[1:] != row[:-1]) | (page[1:] != page[:-1])
    begins = np.append(np.flatnonzero(fresh), len(row))
    device = batch.slots.device
    return Blocks(
        _pages(batch, row[fresh], page[fresh]),
        torch.from_numpy(begins).to(device),
        torch.from_numpy(place[fresh]).to(device),
    )


def _turns(batch: AttentionBatch, row: Column, position: Column) -> list[Turn]:
    """In order, the pages that begin: the first of every row together, then the second, ... One
    with which a sequence begins has no page before it, and the state of nothing: zeros."""
    begins = (position % batch.page_size == 0) & (position > 0)
    row, block = row[begins], position[begins] // batch.page_size
    first = np.maximum(1, -(-np.asarray(batch.starts) // batch.page_size))
    turn = block - first[row]
    every = [turn == number for number in range(turn.max(initial=-1) + 1)]
    return [
        Turn(_pages(batch, row[now], block[now] - 1), _pages(batch, row[now], block[now]))
        for now in every
    ]


def _pages(batch: AttentionBatch, row: Column, block: Column) -> Tensor:
    """The pages of some blocks, int64."""
    table = batch.page_table
    rows, blocks = (torch.from_numpy(index).to(table.device) for index in (row, block))
    return table[rows, blocks].long()
