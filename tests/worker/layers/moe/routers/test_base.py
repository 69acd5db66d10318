"""Functions shared by all routers."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.moe.routers.base import largest, weighted


def test_the_largest_come_in_order_and_the_lowest_of_equals_first() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    assert largest(values, 3).tolist() == [[1, 2, 3], [0, 1, 2]]


def test_weights_are_normed_then_scaled() -> None:
    scores = torch.tensor([[3.0, 4.0]])
    assert weighted(scores, spec.Router(4, 2)).tolist() == [[3.0, 4.0]]
    normed = weighted(scores, spec.Router(4, 2, norm=2.0, scale=10.0))
    torch.testing.assert_close(normed, torch.tensor([[6.0, 8.0]]))
