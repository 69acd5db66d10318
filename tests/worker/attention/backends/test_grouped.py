"""The fast backend against the reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton_worker.attention.backends.grouped import GroupedBackend
from baton_worker.attention.backends.reference import ReferenceBackend

SLOPES = (0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125)
CASES = {
    "decode alone": [(1, 30)],
    "decode of one length": [(1, 30), (1, 30), (1, 30)],
    "decode, ragged": [(1, 0), (1, 7), (1, 130), (1, 31), (1, 500)],
    "drafts": [(3, 17), (3, 40), (5, 40)],
    "prefill": [(70, 0)],
    "prefill of more than a block": [(300, 0)],
    "prefill chunk after a prefix": [(200, 61)],
    "prefill, ragged": [(9, 0), (33, 0), (140, 20)],
    "mixed": [(1, 30), (50, 0), (1, 200), (4, 9), (20, 13), (1, 3)],
}


def difference(problem: Any) -> float:
    """Largest absolute difference between the two backends."""
    results = []
    for backend in (GroupedBackend(), ReferenceBackend()):
        plan = backend.plan(problem.batch, problem.call)
        results.append(backend.forward(plan, problem.query, problem.pages).float())  # type: ignore[arg-type]
    assert results[0].shape == results[1].shape
    return float((results[0] - results[1]).abs().max())


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES.keys())
def test_matches_the_reference(problem: Any, rows: list[tuple[int, int]]) -> None:
    for window, heads in product([None, 1, 10, 64], [(4, 4), (6, 2), (5, 1)]):
        assert difference(problem(rows, window=window, heads=heads)) < 1e-5


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(
    "scores",
    [{"softcap": 0.5}, {"slopes": SLOPES}, {"softcap": 0.5, "slopes": SLOPES}],
    ids=["capped", "alibi", "both"],
)
def test_bent_and_sloped_scores_match_the_reference(
    problem: Any, rows: list[tuple[int, int]], scores: dict[str, Any]
) -> None:
    for window in [None, 10]:
        given = problem(rows, window=window, heads=(6, 2))
        assert difference(replace(given, call=replace(given.call, **scores))) < 1e-5


@given(
    rows=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 90)), min_size=1, max_size=7),
    window=st.none() | st.integers(1, 100),
    page_size=st.sampled_from([1, 4, 16]),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_matches_the_reference_on_any_batch(
    problem: Any, rows: list[tuple[int, int]], window: int | None, page_size: int
) -> None:
    assert difference(problem(rows, window=window, page_size=page_size)) < 1e-5


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES.keys())
def test_bfloat16_stays_within_its_rounding(problem: Any, rows: list[tuple[int, int]]) -> None:
    assert difference(problem(rows, dtype=torch.bfloat16)) < 0.05


def test_one_byte_pages_are_refused(problem: Any) -> None:
    call = problem([(1, 1)], dtype=torch.float8_e4m3fn).call
    assert "float8" in str(GroupedBackend().refuses(call))
