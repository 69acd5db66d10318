"""The reference against torch's own attention, one row at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from baton_worker.attention.reference import ReferenceBackend, visible

CPU = torch.device("cpu")


@pytest.mark.parametrize("start", [0, 5])
def test_one_row_equals_torch_attention(problem: Any, start: int) -> None:
    given = problem([(6, start)])
    backend = ReferenceBackend()
    assert backend.refuses(given.call) is None
    ours = backend.forward(backend.plan(given.batch, given.call), given.query, given.pages)
    history = given.pages[given.batch.page_table[0]].flatten(0, 1)[: start + 6]
    query, key, value = (x.transpose(0, 1) for x in (given.query, history[:, 0], history[:, 1]))
    mask = visible(start, 6, start + 6, None, CPU)
    expected = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    torch.testing.assert_close(ours, expected.transpose(0, 1).flatten(1))


def test_visibility_is_causal_and_counts_the_token_itself_in_the_window() -> None:
    assert visible(1, 2, 3, None, CPU).int().tolist() == [[1, 1, 0], [1, 1, 1]]
    assert visible(1, 2, 3, 2, CPU).int().tolist() == [[1, 1, 0], [0, 1, 1]]
