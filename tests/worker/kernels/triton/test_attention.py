"""What the kernel decides by itself; its results are compared in tests/worker/attention."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.triton.attention import few, shared


@pytest.mark.parametrize(("group", "tokens"), [(1, 16), (4, 4), (5, 3), (16, 1), (17, 1), (64, 1)])
def test_as_many_tokens_are_few_as_fit_into_the_smallest_tile(group: int, tokens: int) -> None:
    assert few(group) == tokens


@pytest.mark.parametrize(
    ("group", "latent", "heads"),
    [
        *((1, False, 1), (64, False, 64), (71, False, 36), (128, False, 64)),
        *((16, True, 16), (20, True, 10), (40, True, 14), (128, True, 16)),
    ],
)
def test_programs_deal_out_the_heads_of_a_group_evenly(
    group: int, latent: bool, heads: int
) -> None:
    assert shared(group, latent) == heads


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
