"""Indices that one copy takes to the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.attention.staged_buffers import StagedBuffers
from tests.fakes.host_link import HostLink

CPU = torch.device("cpu")
NAMES = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")


class Link(HostLink):
    """Takes notes of the copies."""

    def __init__(self) -> None:
        self.sources = list[Tensor]()

    def upload(self, source: Tensor, target: Tensor) -> None:
        """See `DeviceLink`."""
        self.sources.append(source)
        super().upload(source, target)


@pytest.mark.row("F04.32", "F13.08")
def test_a_step_is_one_copy_and_the_indices_are_those_of_a_step_of_its_own() -> None:
    random, link = np.random.default_rng(0), Link()
    buffers = StagedBuffers(CPU, link)
    tables = random.integers(0, 1000, (2, 9, 40)).astype(np.int32)
    for step in range(60):
        rows = random.permutation(9)[: random.integers(1, 10)]
        counts = random.choice([1, 1, 1, 5, 30], len(rows))
        starts = random.integers(0, 100, len(rows))
        link.sources.clear()
        tokens = buffers.put("tokens", np.arange(len(rows)))
        ours = AttentionBatch.build_all(counts, starts, tables, 4, CPU, slots=rows, buffers=buffers)
        buffers.flush()
        assert len(link.sources) == 1 or step < 3
        assert tokens.tolist() == list(range(len(rows)))
        for group in range(2):
            own = AttentionBatch.build(
                counts.tolist(), starts.tolist(), tables[group][rows], 4, CPU
            )
            for name in NAMES:
                found, expected = getattr(ours.of(group), name), getattr(own, name)
                assert torch.equal(found, expected) and found.dtype is expected.dtype


def test_the_next_step_is_written_beside_the_one_that_is_copied() -> None:
    link = Link()
    buffers = StagedBuffers(CPU, link)
    for value in (1, 2, 3):
        buffers.put("x", np.full(4, value, np.int64))
        buffers.flush()
    first, second, third = (source.data_ptr() for source in link.sources)
    assert first == third != second
    assert buffers.allocations == 1


def test_a_step_that_outgrows_the_region_loses_nothing() -> None:
    buffers = StagedBuffers(CPU, HostLink())
    small = buffers.put("small", np.arange(3, dtype=np.float32))
    large = buffers.put("large", np.arange(100_000))
    buffers.flush()
    assert small.tolist() == [0, 1, 2] and torch.equal(large, torch.arange(100_000))
    allocations = buffers.allocations
    for _ in range(3):
        large = buffers.put("large", np.arange(100_000) + 1)
        buffers.flush()
        assert int(large[-1]) == 100_000 and buffers.allocations == allocations
