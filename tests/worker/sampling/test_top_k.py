"""The k largest against torch.topk, over shapes on both sides of the short cut."""

from __future__ import annotations

import pytest
import torch

from baton_worker.sampling.top_k import largest


@pytest.mark.parametrize("count", [0, 1, 5, 64, 100])
@pytest.mark.parametrize("width", [100, 4096, 10_001])
def test_equals_topk(width: int, count: int) -> None:
    values = torch.randn(3, width, generator=torch.Generator().manual_seed(count))
    found, indices = largest(values, count)
    expected = values.topk(count, dim=1)
    assert torch.equal(found, expected.values)
    assert torch.equal(indices, expected.indices)


def test_many_equal_numbers() -> None:
    values = torch.zeros(2, 5000)
    values[0, 4999] = 1.0
    found, indices = largest(values, 10)
    assert found.tolist() == [[1.0] + [0.0] * 9, [0.0] * 10]
    assert indices[0, 0] == 4999
    assert all(len(set(row)) == 10 for row in indices.tolist())


def test_forbidden_tokens_come_last() -> None:
    values = torch.full((1, 5000), -torch.inf)
    values[0, [7, 3000]] = torch.tensor([1.0, 2.0])
    found, indices = largest(values, 3)
    assert found.tolist() == [[2.0, 1.0, -torch.inf]]
    assert indices[0, :2].tolist() == [3000, 7] and 0 <= indices[0, 2] < 5000
