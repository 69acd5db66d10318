"""A step split at page boundaries, for layers that carry a state from page to page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent import chains
from baton_worker.kernels.recurrent.ssm_states import (
    Blocks,
    Chains,
    Fading,
    Kernel,
    Snapshots,
    Walker,
)
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.short_conv import Earlier, found

Column: TypeAlias = NDArray[np.int64]


class Turn(NamedTuple):
    """Pages that start in this step, each with its predecessor: int64 [n] both."""

    before: Tensor
    started: Tensor


@dataclass(frozen=True, slots=True)
class Segments:
    """A step split at page boundaries."""

    turns: list[Turn] | None
    """First the first starting page of each sequence, then the second ones, ... None: the device
    has split the step, for kernels that take `chains`."""
    blocks: Blocks
    """The new tokens of each page."""
    chains: Chains
    """The same pages in order, preceded by the predecessor of a row's first page if that starts."""
    earlier: Earlier
    """Slots of the preceding tokens, for convolutions."""
    pages: Tensor
    """int64: predecessors of starting pages, turn by turn, then the pages of `blocks`; or those of
    `chains`, if there are no `turns`."""

    def run(
        self, kernel: Kernel | Walker, snapshots: Snapshots, query: Tensor, fading: Fading
    ) -> Tensor:
        """Write the states of starting pages and evaluate queries of any dtype: see
        `kernels.ssm_states`. `fading` is that of `pages`."""
        if isinstance(kernel, Walker):
            assert self.turns is None, "fading is given by turns and not by chains"
            return kernel.walk(snapshots, query, self.chains, fading)
        assert self.turns is not None, "the kernel walks no chains"
        counts = [*(len(turn.started) for turn in self.turns), len(self.blocks.pages)]
        *carried, read = map(Fading, *(torch.split(part, counts) for part in fading))
        for (before, started), part in zip(self.turns, carried, strict=True):
            kernel.carry(snapshots, before, started, part)
        return kernel.read(snapshots, query, self.blocks, read)


@dataclass(frozen=True, slots=True)
class Cut:
    """Plans a step like an attention backend, once for all layers of a group with equally many
    convolution taps, if any."""

    taps: int = 1
    capture_blocker: ClassVar[str] = "a layer with a state looks on the host for pages that begin"
    launch_blocker: ClassVar[None] = None

    def plan(self, batch: AttentionBatch, call: Cut) -> Segments:
        """Split the step, once for all layers of a group."""
        assert batch.trees is None and batch.ranges is None, "every earlier token counts"
        row, position = batch.flat()
        turns, pieces = _turns(batch, row, position), Pieces.of(row, position, batch.page_size)
        blocks = _blocks(batch, pieces)
        pages = torch.cat([*(turn.before for turn in turns), blocks.pages])
        earlier = Earlier.of(batch, call.taps)
        return Segments(turns, blocks, _chains(batch, pieces), earlier, pages)


@dataclass(frozen=True, slots=True)
class DeviceCut:
    """See `Cut`: the device splits the step, for kernels that take chains."""

    taps: int = 1
    capture_blocker: ClassVar[None] = None
    launch_blocker: ClassVar[None] = None

    def plan(self, batch: AttentionBatch, call: DeviceCut) -> DeviceSegments:
        """Split the step, once for all layers of a group."""
        assert batch.trees is None and batch.ranges is None, "every earlier token counts"
        return DeviceSegments(batch, call.taps)


@dataclass(frozen=True, slots=True)
class DeviceSegments:
    """See `attention.backend.DevicePlan`."""

    batch: AttentionBatch
    taps: int

    def compute(self) -> Segments:
        """Split the step: without turns."""
        of_pages, earlier = found(self.batch, self.taps)
        blocks = Blocks(of_pages.pages, of_pages.begins, of_pages.firsts)
        return Segments(None, blocks, of_pages, earlier, of_pages.pages)


def splitter(context: BuildContext, refused: str | None, taps: int = 1) -> Cut | DeviceCut:
    """Splits steps for the kernels that a device has. `refused`: why C++ does not compute the
    layer, if it does not."""
    return DeviceCut(taps) if chains.runs(context.device, context.dtype, refused) else Cut(taps)


class Pieces(NamedTuple):
    """The new tokens of each page, of each row in order."""

    row: Column
    page: Column
    """Page index within its row."""
    first: Column
    """Index of the first new token within the page."""
    begin: Column
    """Its index in the step, with the total number of tokens at the end."""

    @classmethod
    def of(cls, row: Column, position: Column, page_size: int) -> Pieces:
        """Tokens of a row are consecutive, so a piece starts where the row or the page changes."""
        page, place = np.divmod(position, page_size)
        fresh = np.ones(len(row), np.bool_)
        fresh[1:] = (row[1:] != row[:-1]) | (page[1:] != page[:-1])
        begin = np.append(np.flatnonzero(fresh), len(row))
        return cls(row[fresh], page[fresh], place[fresh], begin)

    def carried(self, page_size: int) -> Pieces:
        """Insert the predecessor, without new tokens, where a row's first page starts."""
        first_of_row = np.diff(self.row, prepend=-1) != 0
        [at] = np.nonzero(first_of_row & (self.first == 0) & (self.page > 0))
        return Pieces(
            np.insert(self.row, at, self.row[at]),
            np.insert(self.page, at, self.page[at] - 1),
            np.insert(self.first, at, page_size),
            np.insert(self.begin, at, self.begin[at]),
        )


def _blocks(batch: AttentionBatch, pieces: Pieces) -> Blocks:
    begins, firsts = _moved(batch, pieces.begin, pieces.first)
    return Blocks(pages_of(batch, pieces.row, pieces.page), begins, firsts)


def _chains(batch: AttentionBatch, pieces: Pieces) -> Chains:
    pieces = pieces.carried(batch.page_size)
    first = np.append(np.flatnonzero(np.diff(pieces.row, prepend=-1)), len(pieces.row))
    starts, stops = _moved(batch, first[:-1], first[1:])
    firsts, begins = _moved(batch, pieces.first, pieces.begin)
    return Chains(starts, stops, pages_of(batch, pieces.row, pieces.page), firsts, begins)


def _moved(batch: AttentionBatch, *columns: Column) -> list[Tensor]:
    """Copy columns to the device of the step."""
    return [torch.from_numpy(column).to(batch.slot_mapping.device) for column in columns]


def _turns(batch: AttentionBatch, row: Column, position: Column) -> list[Turn]:
    """Starting pages in order: the first of every row together, then the second, ... The first page
    of a sequence has no predecessor and starts with a zero state."""
    begins = (position % batch.page_size == 0) & (position > 0)
    row, block = row[begins], position[begins] // batch.page_size
    first = np.maximum(1, -(-np.asarray(batch.num_computed) // batch.page_size))
    turn = block - first[row]
    every = [turn == number for number in range(turn.max(initial=-1) + 1)]
    return [
        Turn(pages_of(batch, row[now], block[now] - 1), pages_of(batch, row[now], block[now]))
        for now in every
    ]


def pages_of(batch: AttentionBatch, row: Column, block: Column) -> Tensor:
    """Page numbers of blocks, int64."""
    table = batch.block_table
    rows, blocks = _moved(batch, row, block)
    return table[rows, blocks].long()
