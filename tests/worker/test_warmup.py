"""Warm-up plans fit whatever the engine is, and leave it empty."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton.tokens import unpack
from baton_worker import warmup
from baton_worker.batch import Batch
from baton_worker.resolution import Placement, Resolved

LARGE = Resolved(
    placement=Placement(torch.device("cpu"), torch.float32, 1),
    num_pages=1000,
    page_size=16,
    page_bytes=1,
    max_rows=64,
    max_batch_tokens=2048,
    max_length=4096,
    vocab_size=100,
    weight_bytes=0,
    eos_ids=(),
)


def run(resolved: Resolved) -> tuple[Batch, list[int]]:
    """Apply the plans without a model; the batch and the rows of each step."""
    batch = Batch(
        max_rows=resolved.max_rows,
        max_length=resolved.max_length,
        page_size=resolved.page_size,
        num_pages=resolved.num_pages,
        vocab_size=resolved.vocab_size,
    )
    sizes = []
    for plan in warmup.plans(resolved):
        assert sum(unpack(plan.counts, "I")) <= resolved.max_batch_tokens
        rows, refused = batch.apply(plan)
        assert not refused
        batch.advance(rows)
        if len(rows):
            batch.accept(rows.slots, rows.slots.astype("int32"))
        sizes.append(len(rows))
    return batch, sizes


def test_a_large_engine_meets_every_size() -> None:
    batch, sizes = run(LARGE)
    assert len(batch) == 0
    assert sizes == [n for rows in (1, 2, 4, 8, 16, 32) for n in (rows, rows, 0)]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_pages": 1, "max_length": 16},
        {"num_pages": 1, "page_size": 1, "max_length": 1},
        {"num_pages": 3, "page_size": 4, "max_length": 12},
        {"max_rows": 3},
        {"max_batch_tokens": 5},
        {"max_length": 2},
    ],
)
def test_a_small_engine_is_not_overrun(changes: dict[str, Any]) -> None:
    batch, _ = run(replace(LARGE, **changes))
    assert len(batch) == 0
