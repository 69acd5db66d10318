"""What attention is asked to do, counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.attention.call_stats import CallStats, CountedBackend
from baton_worker.attention.selector import AttentionSelector

CPU = torch.device("cpu")


def batch(*rows: tuple[int, int]) -> AttentionBatch:
    counts, starts = zip(*rows, strict=True)
    return AttentionBatch.build(counts, starts, [[0]] * len(rows), 64, CPU)


@pytest.mark.row("F04.30")
def test_a_replan_is_a_plan_for_other_rows_than_the_last_of_its_kind(problem: Any) -> None:
    counts, call = CallStats(), problem([(1, 1)]).call
    windowed = replace(call, window=4)
    for step in (batch((1, 3)), batch((1, 4)), batch((5, 0), (1, 5)), batch((1, 5), (1, 6))):
        counts.planned(step, call)
    assert (counts.plans, counts.replans) == (4, 2)
    counts.planned(batch((9, 0)), windowed)
    assert (counts.plans, counts.replans) == (5, 2)


@pytest.mark.row("F04.30")
@pytest.mark.parametrize(("name", "fallbacks"), [("grouped", 2), ("reference", 2), ("cpu", 0)])
def test_layers_that_plain_torch_answers_are_fallbacks(
    problem: Any, name: str, fallbacks: int
) -> None:
    given, counts = problem([(1, 5), (3, 2)]), CallStats()
    plain = AttentionSelector(name).select(given.call)
    backend = AttentionSelector(name, counts).select(given.call)
    assert isinstance(backend, CountedBackend) and not isinstance(plain, CountedBackend)
    plan = backend.plan(given.batch, given.call)
    for _ in range(2):
        ours = backend.forward(plan, given.query, given.pages)
    expected = plain.forward(plain.plan(given.batch, given.call), given.query, given.pages)
    assert torch.equal(ours, expected)
    said = f"attention: 1 plans, 0 of them replans, {fallbacks} fallbacks to torch"
    assert str(counts) == said
    counts.clear()
    assert str(counts) == "attention: 0 plans, 0 of them replans, 0 fallbacks to torch"


def test_nothing_is_wrapped_where_nobody_counts(problem: Any) -> None:
    call = problem([(1, 1)]).call
    assert isinstance(AttentionSelector(counts=CallStats()).select(call), CountedBackend)
    assert not isinstance(AttentionSelector().select(call), CountedBackend)


@pytest.mark.parametrize("name", ["cpu", "grouped"])
def test_it_can_be_captured_if_its_backend_can(problem: Any, name: str) -> None:
    plain = AttentionSelector(name).select(problem([(1, 1)]).call)
    assert CountedBackend(plain, False, CallStats()).capture_blocker == plain.capture_blocker
    assert (plain.capture_blocker is None) == (name == "cpu")


def test_it_refuses_what_its_backend_refuses(problem: Any) -> None:
    given = problem([(1, 1)])
    backend = AttentionSelector("grouped", CallStats()).select(given.call)
    assert "torch.int8" in str(backend.refuses(replace(given.call, dtype=torch.int8)))
