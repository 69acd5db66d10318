"""Steps cut where pages begin, by hand."""

from __future__ import annotations

import torch

from baton_worker.attention import AttentionBatch
from baton_worker.layers.ssm.page_segments import Cut, Segments

CPU = torch.device("cpu")


def plan(counts: list[int], starts: list[int], page_size: int, taps: int = 1) -> Segments:
    """Row r has the pages 10 r, 10 r + 1, ..."""
    tables = [[10 * row + page for page in range(9)] for row in range(len(counts))]
    batch = AttentionBatch.build(counts, starts, tables, page_size, CPU)
    return Cut(taps).plan(batch, Cut(taps))


def test_pages_that_begin_come_in_turns_one_of_each_row() -> None:
    segments = plan([9, 1, 2, 4], [0, 8, 6, 0], page_size=4)
    turns = [(turn.before.tolist(), turn.started.tolist()) for turn in segments.turns]
    # Row 2 ends before its third page begins, and row 3 before its second.
    assert turns == [([0, 11], [1, 12]), ([1], [2])]


def test_blocks_straddle_no_pages() -> None:
    blocks = plan([5, 1, 9], [3, 16, 0], page_size=4).blocks
    assert blocks.pages.tolist() == [0, 1, 14, 20, 21, 22]
    assert blocks.begins.tolist() == [0, 1, 5, 6, 10, 14, 15]
    assert blocks.firsts.tolist() == [3, 0, 0, 0, 0, 0]


def test_chains_have_the_pages_of_each_row_in_order() -> None:
    """The second row begins a page: the one before has its state. The third goes on within one."""
    chains = plan([5, 1, 3, 9], [3, 16, 5, 0], page_size=4).chains
    assert chains.starts.tolist() == [0, 2, 4, 5] and chains.stops.tolist() == [2, 4, 5, 8]
    assert chains.pages.tolist() == [0, 1, 13, 14, 21, 30, 31, 32]
    assert chains.firsts.tolist() == [3, 0, 4, 0, 1, 0, 0, 0]
    assert chains.begins.tolist() == [0, 1, 5, 5, 6, 9, 13, 17, 18]


def test_a_convolution_finds_the_tokens_before_across_pages() -> None:
    earlier = plan([2], [4], page_size=4, taps=3).earlier
    assert earlier.slots.tolist() == [[3, 4], [2, 3]] and earlier.missing is None
    assert plan([2], [0], page_size=4, taps=2).earlier.missing is not None
