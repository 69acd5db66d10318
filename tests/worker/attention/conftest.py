"""Random ragged batches over random pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from baton_worker.attention import AttentionBatch, AttentionCall

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Problem:
    """Inputs of one `Backend.forward`."""

    call: AttentionCall
    batch: AttentionBatch
    query: torch.Tensor
    pages: torch.Tensor


def make_problem(
    rows: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 8,
    window: int | None = None,
    page_size: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """`rows` are (new tokens, tokens before them); pages are handed out in a random order."""
    generator = torch.Generator().manual_seed(len(rows))
    needed = [-(-(count + start) // page_size) for count, start in rows]
    num_pages = sum(needed) + 1
    order = iter(torch.randperm(num_pages, generator=generator).tolist())
    tables = [[next(order) for _ in range(number)] for number in needed]
    counts, starts = zip(*rows, strict=True)
    num_tokens = sum(counts)
    # One product makes q, k and v, so a backend sees queries with a wider row stride.
    heads_and_more = torch.randn(num_tokens, sum(heads) + 3, head_dim, generator=generator)
    shape = (num_pages, page_size, 2, heads[1], head_dim)
    return Problem(
        AttentionCall(heads[0], heads[1], head_dim, head_dim**-0.5, window, dtype, CPU),
        AttentionBatch.build(counts, starts, tables, page_size, CPU),
        heads_and_more.to(dtype)[:, : heads[0]],
        torch.randn(shape, generator=generator).to(dtype),
    )


@pytest.fixture
def problem() -> object:
    return make_problem
