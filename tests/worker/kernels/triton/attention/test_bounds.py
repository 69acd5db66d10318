"""Which row a program of the attention kernel works for."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("tile", [1, 3, 16])
def test_a_program_finds_the_row_of_its_queries(tile: int, device: torch.device) -> None:
    from tests.fakes.triton_kernels import rows

    counts = [1, 40, 1, 1, 16, 7]
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    blocks = sum(counts) // tile + len(counts)
    found = torch.zeros(blocks, dtype=torch.int32, device=device)
    rows[blocks,](starts.to(device), found, len(counts), TILE=tile)
    for row, count in enumerate(counts):
        assert (found == row).sum() >= -(-count // tile)
    assert torch.equal(found, found.sort().values)
