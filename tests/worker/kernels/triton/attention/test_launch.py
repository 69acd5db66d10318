"""What the kernel decides by itself; its results are compared in tests/worker/attention."""

from __future__ import annotations

import pytest

from baton_worker.kernels.triton.attention.launch import heads_per_program, most_split_tokens


@pytest.mark.parametrize(("group", "tokens"), [(1, 16), (4, 4), (5, 3), (16, 1), (17, 1), (64, 1)])
def test_rows_of_as_many_tokens_are_split_as_fit_into_the_smallest_tile(
    group: int, tokens: int
) -> None:
    assert most_split_tokens(group) == tokens


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
    assert heads_per_program(group, latent) == heads
