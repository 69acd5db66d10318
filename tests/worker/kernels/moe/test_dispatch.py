"""Visits of tokens to experts and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_worker.kernels.moe.dispatch import combine, dispatch, weighted_sum
from tests.support.worker.expert_layers import routed


def test_the_rows_of_a_token_are_added_in_slot_order() -> None:
    rows = torch.tensor([[[1e8], [1.0], [-1e8]], [[1e8], [-1e8], [1.0]]])
    assert weighted_sum(rows, torch.ones(2, 3)).flatten().tolist() == [0.0, 1.0]


@pytest.mark.row("F06.02")
@given(
    num=st.integers(1, 12), num_tokens=st.integers(1, 20), seed=st.integers(0, 999), data=st.data()
)
@settings(max_examples=40, deadline=None)
def test_dispatch_and_combine_are_a_round_trip(
    num: int, num_tokens: int, seed: int, data: st.DataObject
) -> None:
    chosen, _ = routed(num_tokens, num, data.draw(st.integers(1, num)), seed)
    chosen = torch.where(torch.rand(chosen.shape) < 0.2, -1, chosen)
    visits, counts = dispatch(chosen, num)
    assert counts == [int((chosen == expert).sum()) for expert in range(num)]
    sent = chosen.flatten()[visits].tolist()
    assert sent == sorted(sent)
    x, slots = torch.randn(num_tokens, 4), chosen.shape[1]
    weights = (chosen >= 0) / (chosen >= 0).sum(-1, keepdim=True).clamp(min=1)
    back = combine(x[visits // slots], visits, weights)
    torch.testing.assert_close(back, x * (chosen >= 0).any(-1, keepdim=True))
