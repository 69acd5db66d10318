"""Pages scanned in a step, the ends of the scans, and the places of their outputs."""

from __future__ import annotations

import torch

from baton_worker.attention import AttentionBatch
from baton_worker.layers.ssm.scan_plan import AT_ONCE, Scans, Walks

CPU = torch.device("cpu")


def walks(counts: list[int], starts: list[int], page_size: int, num_pages: int = 9) -> Walks:
    tables = [
        [100 * row + block for block in range(num_pages, 0, -1)] for row in range(len(counts))
    ]
    batch = AttentionBatch.build(counts, starts, tables, page_size, CPU)
    return Scans(2).plan(batch, Scans(2))


def test_pages_that_end_alike_walk_together() -> None:
    """Row 0 continues its second page and begins a third, row 1 writes one token."""
    found = walks([6, 1], [6, 9], 4)
    [walk] = found.walks
    assert walk.pages.tolist() == [107, 7, 8] and (walk.first, walk.last) == (0, 4)
    assert [turn.started.tolist() for turn in found.turns] == [[7]]
    assert found.earlier.slots.shape == (1, 7)


def test_decode_steps_go_as_far_as_each_has_come() -> None:
    starts = [number % 16 for number in range(3 * AT_ONCE)]
    found = walks([1] * len(starts), starts, 16, 1)
    spans = [(walk.first, walk.last) for walk in found.walks]
    assert spans == [(0, 6), (5, 11), (10, 16)]


def test_tokens_come_back_from_their_walks() -> None:
    counts = [1 + 5 * row % 7 for row in range(2 * AT_ONCE + 3)]
    found = walks(counts, [3 * row % 11 for row in range(len(counts))], 4)
    tokens = torch.randn(sum(counts), 3)
    parts = found.spread(tokens)
    assert [len(part) for part in parts] == [len(walk.pages) for walk in found.walks]
    assert sum(int((part != 0).any(-1).sum()) for part in parts) == len(tokens)
    assert torch.equal(found.gather(parts), tokens)


def test_each_token_is_at_its_place_in_its_page() -> None:
    found = walks([5, 3], [2, 1], 4)
    offsets = torch.tensor([2, 3, 0, 1, 2, 1, 2, 3])
    for walk, part in zip(found.walks, found.spread(offsets + 1), strict=True):
        for row in part:
            assert ((row == 0) | (row == torch.arange(walk.first, walk.last) + 1)).all()
