"""Memory that steps write again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.attention.buffers import Buffers

CPU = torch.device("cpu")
NAMES = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")


def test_what_fits_is_where_it_was() -> None:
    buffers = Buffers(CPU)
    first = buffers.array("x", (3, 2), np.int32)
    first[:] = [[1, 2], [3, 4], [5, 6]]
    there = buffers.tensor("x")
    assert there.tolist() == first.tolist() and there.dtype is torch.int32
    again = buffers.array("x", (2, 4), np.int32)
    again[:] = 7
    assert buffers.tensor("x").data_ptr() == there.data_ptr() and buffers.allocations == 1
    assert buffers.tensor("x").tolist() == [[7] * 4] * 2 and buffers.tensor("x").is_contiguous()
    buffers.array("x", (9,), np.int32)
    assert buffers.allocations == 2


def test_names_are_apart() -> None:
    buffers = Buffers(CPU)
    buffers.array("x", (1,), np.int64)[:] = 1
    buffers.array("y", (1,), np.int64)[:] = 2
    assert buffers.tensor("x").tolist() == [1] and buffers.tensor("y").tolist() == [2]


@pytest.mark.row("F04.32")
def test_a_step_in_buffers_is_the_step_in_memory_of_its_own() -> None:
    random, buffers = np.random.default_rng(0), Buffers(CPU)
    tables = random.integers(0, 1000, (2, 9, 40)).astype(np.int32)
    for _ in range(60):
        rows = random.permutation(9)[: random.integers(1, 10)]
        counts = random.choice([1, 1, 1, 5, 30], len(rows))
        starts = random.integers(0, 100, len(rows))
        ours = AttentionBatch.build_all(counts, starts, tables, 4, CPU, slots=rows, buffers=buffers)
        for group in range(2):
            own = AttentionBatch.build(
                counts.tolist(), starts.tolist(), tables[group][rows], 4, CPU
            )
            for name in NAMES:
                found, expected = getattr(ours.of(group), name), getattr(own, name)
                assert torch.equal(found, expected) and found.dtype is expected.dtype
                assert found.is_contiguous()
            assert (ours.of(group).query_lens, ours.of(group).num_computed) == (
                own.query_lens,
                own.num_computed,
            )


@pytest.mark.row("F04.32")
def test_decode_steps_write_the_addresses_of_the_one_before() -> None:
    tables, buffers = np.arange(2 * 4 * 16, dtype=np.int32).reshape(2, 4, 16), Buffers(CPU)
    order, seen, made = np.array([2, 0, 3]), set[tuple[int, ...]](), list[int]()
    for step in range(40):
        starts = np.array([3, 9, 20]) + step
        batch = AttentionBatch.build_all(
            np.ones(3, np.int64), starts, tables, 4, CPU, slots=order, buffers=buffers
        )
        parts = [getattr(batch.of(g), name) for g in range(2) for name in NAMES]
        made.append(buffers.allocations)
        if step >= 32:
            seen.add(tuple(part.data_ptr() for part in parts))
    assert len(seen) == 1 and made[32:] == [made[32]] * 8
    # A table grows with the longest row: some times on the way, and never for one more token.
    assert len(set(made)) <= 3
