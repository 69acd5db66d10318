"""The indices of a ragged step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton_worker.attention import AttentionBatch

CPU = torch.device("cpu")


@pytest.mark.parametrize("as_array", [False, True])
def test_indices_of_a_mixed_step(as_array: bool) -> None:
    pages: list[list[int]] | np.ndarray[tuple[int, int], np.dtype[np.int32]]
    pages = [[5, 3, 9], [7], [2, 4]]
    if as_array:
        pages = np.array([[5, 3, 9, 8], [7, 8, 8, 8], [2, 4, 8, 8]], np.int32)
    batch = AttentionBatch.build([1, 3, 2], [8, 0, 3], pages, 4, CPU)
    assert batch.query_start_loc.tolist() == [0, 1, 4, 6]
    assert batch.seq_lens.tolist() == [9, 3, 5]
    assert batch.block_table.tolist() == [[5, 3, 9], [7, 0, 0], [2, 4, 0]]
    assert batch.slot_mapping.tolist() == [9 * 4, 7 * 4, 7 * 4 + 1, 7 * 4 + 2, 2 * 4 + 3, 4 * 4]
    assert (batch.query_lens, batch.num_computed) == ((1, 3, 2), (8, 0, 3))


def test_dtypes_are_those_that_kernels_expect() -> None:
    batch = AttentionBatch.build([2], [0], [[1]], 4, CPU)
    int32 = (batch.query_start_loc, batch.seq_lens, batch.block_table)
    assert {tensor.dtype for tensor in int32} == {torch.int32}
    assert batch.slot_mapping.dtype is torch.int64


def test_unused_pages_are_cut_off() -> None:
    batch = AttentionBatch.build([1], [3], [[1, 2, 3, 4]], 4, CPU)
    assert batch.block_table.tolist() == [[1]]


def test_a_row_without_new_tokens_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        AttentionBatch.build([0], [3], [[1]], 4, CPU)


def test_pages_begin_with_their_first_token() -> None:
    """Of three rows, one fills a page, one begins its second and third, one its first."""
    batch = AttentionBatch.build(
        [1, 6, 2], [3, 3, 0], [[4], [1, 5, 2], [3]], 4, torch.device("cpu")
    )
    assert batch.started_pages is not None and batch.started_pages.tolist() == [5, 2, 3]
    assert batch.first is not None and batch.first.tolist() == [3]
    rows, positions = batch.flat()
    assert rows.tolist() == [0, *[1] * 6, 2, 2]
    assert positions.tolist() == [3, *range(3, 9), 0, 1]
