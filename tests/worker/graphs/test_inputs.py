"""The memory that captured steps read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.load import load_model
from baton_worker.graphs.inputs import DecodeInputs, MixedInputs, RaggedInputs
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.kv_cache import KVCache, LayerGroups
from baton_worker.layers.build_context import BuildContext

CPU, PAGES, PAGE = torch.device("cpu"), 20, 4


@pytest.fixture
def cache(stories: Path) -> KVCache:
    spec = load_model(stories, BuildContext(CPU, torch.float32)).spec
    groups = LayerGroups((0, 8), (0, 0, 1, 1, 1), (0, 1, 0, 1, 2))
    return KVCache(spec, PAGES, PAGE, dtype=torch.float32, device=CPU, groups=groups, spare=1)


def step(*starts: int) -> tuple[torch.Tensor, torch.Tensor, AttentionBatch]:
    """Row r has the pages 2 r, 2 r + 1 in one group and 10 + 2 r, ... in the other."""
    tables = np.arange(20, dtype=np.int32).reshape(2, 5, 2)
    counts = [1] * len(starts)
    batch = AttentionBatch.build_all(counts, starts, tables, PAGE, CPU)
    positions = torch.tensor(starts)
    return positions + 100, positions, batch


def test_a_step_and_its_padding(cache: KVCache) -> None:
    inputs = DecodeInputs(cache, 4, 12, CPU)
    for starts in ((5, 0, 3), (2,)):
        tokens, positions, batch = step(*starts)
        inputs.write(tokens, positions, batch)
        rows, padding = len(starts), 4 - len(starts)
        whole = inputs.batch(4)
        assert inputs.tokens.tolist() == [*tokens.tolist(), *[0] * padding]
        assert inputs.positions.tolist() == [*starts, *[0] * padding]
        assert whole.query_start_loc.tolist() == [0, 1, 2, 3, 4]
        assert whole.seq_lens.tolist() == [*(start + 1 for start in starts), *[1] * padding]
        for group in range(2):
            ours, theirs = whole.of(group), batch.of(group)
            slots = theirs.slot_mapping.tolist()
            assert ours.slot_mapping.tolist() == [*slots, *[PAGES * PAGE] * padding]
            width = theirs.block_table.shape[1]
            assert torch.equal(ours.block_table[:rows, :width], theirs.block_table)
            assert (ours.block_table[rows:, 0] == PAGES).all()


def test_every_size_reads_the_same_memory_at_the_same_place(cache: KVCache) -> None:
    inputs = DecodeInputs(cache, 4, 12, CPU)
    found = []
    for rows in (1, 2, 4):
        batch = inputs.batch(rows)
        each = (batch, batch.of(1))
        found.append(
            [x.data_ptr() for b in each for x in (b.seq_lens, b.slot_mapping, b.block_table)]
        )
        assert batch.seq_lens.shape == (rows,) and batch.block_table.shape == (rows, 3)
        assert all(
            b.block_table.is_contiguous() and b.block_table.dtype is torch.int32 for b in each
        )
        assert batch.slot_mapping.dtype is torch.int64
    assert found[0] == found[1] == found[2]


def test_a_plan_is_made_for_the_longest_rows(cache: KVCache) -> None:
    batch = DecodeInputs(cache, 2, 12, CPU).batch(2)
    assert (batch.query_lens, batch.num_computed) == ((1, 1), (11, 11))
    assert batch.of(1).num_computed == (11, 11)


def test_a_step_of_any_shape(cache: KVCache) -> None:
    inputs = RaggedInputs(cache, Extent(9, 3), 12, CPU)
    tables = np.arange(18, dtype=np.int32).reshape(2, 3, 3)
    for counts, starts in (((4, 1, 3), (0, 5, 2)), ((2, 3), (1, 0))):
        batch = AttentionBatch.build_all(counts, starts, tables[:, : len(counts)], PAGE, CPU)
        positions = torch.from_numpy(batch.flat()[1])
        inputs.write(positions + 100, positions, batch)
        whole, rows, tokens = inputs.batch(Extent(9, 3)), len(counts), sum(counts)
        assert inputs.positions[:tokens].equal(positions)
        assert inputs.tokens[:tokens].equal(positions + 100)
        assert whole.query_start_loc[: rows + 1].equal(batch.query_start_loc)
        assert whole.seq_lens[:rows].equal(batch.seq_lens)
        for group in range(2):
            ours, theirs = whole.of(group), batch.of(group)
            assert ours.slot_mapping[:tokens].equal(theirs.slot_mapping)
            width = theirs.block_table.shape[1]
            assert ours.block_table[:rows, :width].equal(theirs.block_table)


def test_every_token_of_a_padded_step_belongs_to_a_row(cache: KVCache) -> None:
    """Before its first step too, since it is captured then."""
    inputs = MixedInputs(cache, 8, 4, 12, CPU)
    tokens, positions, batch = step(5, 0)
    for size, counts in ((8, [8, 0, 0, 0, 0]), (6, [6, 0, 0, 0, 0]), (8, [1, 1, 6, 0, 0])):
        rows = 0 if counts[0] == size else 2
        if rows:
            inputs.fill(tokens, positions, batch, size)
        else:
            inputs.pad(size)
        found, number = inputs.of(size), len(inputs.of(size).query_lens)
        assert found.query_start_loc.diff().tolist() == counts[:number]
        assert found.seq_lens[rows] == size - rows
        assert (found.of(1).block_table[rows] == PAGES).all()
        assert (found.slot_mapping[rows:] == PAGES * PAGE).all()


def test_tokens_are_dealt_to_rows(cache: KVCache) -> None:
    """A plan is made for them, so each row has one at least."""
    batch = RaggedInputs(cache, Extent(11, 4), 12, CPU).batch(Extent(11, 4))
    assert (batch.query_lens, batch.num_computed) == ((3, 3, 3, 2), (9, 9, 9, 10))
    assert batch.slot_mapping.shape == (11,) and batch.seq_lens.shape == (4,)


@pytest.mark.parametrize(
    ("most", "tried"), [((9, 5), (4, 3)), ((3, 3), (3, 2)), ((9, 1), (4, 1)), ((1, 1), (1, 1))]
)
def test_what_is_tried_out_writes_to_the_spare_page(
    cache: KVCache, most: tuple[int, int], tried: tuple[int, int]
) -> None:
    inputs = RaggedInputs(cache, Extent(*most), 12, CPU)
    assert inputs.try_out(Extent(*most)) == tried
    batch = inputs.batch(Extent(*tried))
    slots = list(range(PAGES * PAGE, PAGES * PAGE + tried[0]))
    assert batch.slot_mapping.tolist() == batch.of(1).slot_mapping.tolist() == slots
    assert batch.query_start_loc[-1] == batch.seq_lens[-1] == tried[0]
    assert (batch.query_start_loc[1:] > batch.query_start_loc[:-1]).all()
