"""Where the experts are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.errors import SettingsError
from baton_worker.spec.expert_map import ELSEWHERE, PLACEMENTS, ExpertMap


def maps(placement: str, num_experts: int, size: int) -> list[ExpertMap]:
    return [ExpertMap.placed(placement, num_experts, rank, size) for rank in range(size)]


@pytest.mark.row("F06.20")
@pytest.mark.parametrize(
    ("placement", "here"),
    [
        ("linear", [(0, 1, 2), (3, 4), (5, 6)]),
        ("round_robin", [(0, 3, 6), (1, 4), (2, 5)]),
    ],
)
def test_experts_are_dealt_out(placement: str, here: list[tuple[int, ...]]) -> None:
    assert [each.here for each in maps(placement, 7, 3)] == here


@pytest.mark.row("F06.20")
@settings(deadline=None)
@given(st.sampled_from(sorted(PLACEMENTS)), st.integers(1, 9), st.integers(0, 60))
def test_numbers_here_and_in_the_model_are_each_others_inverse(
    placement: str, size: int, more: int
) -> None:
    num_experts = size + more
    found = maps(placement, num_experts, size)
    assert sorted(expert for each in found for expert in each.here) == list(range(num_experts))
    counts = [len(each.here) for each in found]
    assert max(counts) - min(counts) <= 1
    for each in found:
        assert [each.local[expert] for expert in each.here] == list(range(len(each.here)))
        assert each.local.count(ELSEWHERE) == num_experts - len(each.here)
        assert each.here == each.held[each.rank] and each.num_experts == num_experts


def test_every_rank_has_an_expert() -> None:
    with pytest.raises(SettingsError, match="3 experts cannot be dealt out to 4 ranks"):
        ExpertMap.placed("linear", 3, 0, 4)
