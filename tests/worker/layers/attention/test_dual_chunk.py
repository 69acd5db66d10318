"""Rows are split at chunk boundaries; unsupported combinations with chunks are refused.
tests/worker/models compares dual chunk attention with plain attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.attention import AttentionBatch
from baton_worker.layers.attention.dual_chunk import DualChunk, by_chunk
from baton_worker.layers.build_context import BuildContext
from baton_worker.spec import DualChunkAttention, Mask, Norm, QkNorm, Rope, Sinks

CPU = torch.device("cpu")
SETTINGS = DualChunkAttention(
    2, 1, 8, 0.3, Rope(8, 100.0, 64), chunk_size=6, local_size=2, trained=5
)


def batch(counts: list[int], starts: list[int]) -> AttentionBatch:
    tables = [list(range(row * 8, row * 8 + 8)) for row in range(len(counts))]
    return AttentionBatch.build(counts, starts, tables, 2, CPU)


def test_rows_end_where_a_chunk_does() -> None:
    whole = batch([1, 9, 2], [3, 2, 6])
    cut = by_chunk(whole, 4)
    assert cut.query_lens == (1, 2, 4, 3, 2) and cut.num_computed == (3, 2, 4, 8, 6)
    assert cut.query_start_loc.tolist() == [0, 1, 3, 7, 10, 12]
    assert cut.seq_lens.tolist() == [4, 4, 8, 11, 8]
    assert cut.block_table[:, 0].tolist() == [0, 8, 8, 8, 16]
    assert (
        torch.equal(cut.slot_mapping, whole.slot_mapping)
        and cut.query_start_loc.dtype is torch.int32
    )


def test_rows_within_one_chunk_are_left_alone() -> None:
    whole = batch([1, 3], [7, 4])
    assert by_chunk(whole, 4) is whole


def test_a_step_attends_to_no_more_parts_than_it_has(context: BuildContext) -> None:
    layer = DualChunk(SETTINGS, 16, context)
    plans = [layer.backend.plan(batch([1], [start]), layer.call) for start in (3, 4, 8, 12)]
    assert [len(plan.parts) for plan in plans] == [1, 2, 3, 3]
    assert [plan.stretch is None for plan in plans] == [True, True, False, False]
    [stretch] = plans[-1].stretch.flatten().tolist()
    assert stretch == pytest.approx((0.1 * torch.tensor(13 / 5).log().item() + 1) ** 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": Mask(window=4)}, "a window"),
        ({"sinks": Sinks()}, "sinks"),
        ({"rope": None}, "no rope"),
        ({"qk_norm": QkNorm(Norm(1e-5), after_rope=True)}, "norms after the rope"),
        ({"local_size": 6}, "chunk_size of 6 and a local_size of 6"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(
    context: BuildContext, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        DualChunk(replace(SETTINGS, **changes), 16, context)
