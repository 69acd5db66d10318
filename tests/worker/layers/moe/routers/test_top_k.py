"""The router against its definition, written token by token."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_worker import spec
from baton_worker.layers.moe.routers.top_k import top_k

SCORES = {
    "softmax": lambda row: [math.exp(x) / sum(map(math.exp, row)) for x in row],
    "sigmoid": lambda row: [1 / (1 + math.exp(-x)) for x in row],
    "sqrt_softplus": lambda row: [math.sqrt(math.log1p(math.exp(x))) for x in row],
}


def by_definition(
    row: list[float], router: spec.Router, correction: list[float] | None
) -> tuple[list[int], list[float]]:
    """One token: experts in order of choice, and their weights."""
    scores = SCORES[router.score](row)
    choice = [s + c for s, c in zip(scores, correction or [0.0] * len(row), strict=True)]
    size = len(row) // router.num_groups
    groups = [range(g * size, (g + 1) * size) for g in range(router.num_groups)]
    worth = [
        sum(sorted((choice[e] for e in g), reverse=True)[: router.group_width]) for g in groups
    ]
    best = sorted(range(len(groups)), key=lambda g: (-worth[g], g))[: router.top_groups]
    allowed = [e for g in best for e in groups[g]]
    experts = sorted(allowed, key=lambda e: (-choice[e], e))[: router.top_k]
    weights = [scores[e] for e in experts]
    if router.norm is not None:
        norm = sum(w**router.norm for w in weights) ** (1 / router.norm)
        weights = [w / max(norm, router.norm_floor) for w in weights]
    return experts, [w * router.scale for w in weights]


def check(logits: torch.Tensor, router: spec.Router, correction: torch.Tensor | None) -> None:
    routing = top_k(logits, router, correction)
    for token, row in enumerate(logits.tolist()):
        bias = None if correction is None else correction.tolist()
        experts, weights = by_definition(row, router, bias)
        assert routing.experts[token].tolist() == experts
        torch.testing.assert_close(routing.weights[token], torch.tensor(weights))


PLAIN = spec.Router(num_experts=8, top_k=3)


@pytest.mark.row("F06.06", "F06.07")
@given(seed=st.integers(0, 10_000), num_experts=st.integers(1, 40), data=st.data())
@settings(max_examples=30, deadline=None)
def test_softmax_top_k(seed: int, num_experts: int, data: st.DataObject) -> None:
    router = spec.Router(num_experts, data.draw(st.integers(1, num_experts)))
    generator = torch.Generator().manual_seed(seed)
    check(torch.randn(5, num_experts, generator=generator), router, None)


@pytest.mark.row("F06.06", "F06.07")
def test_among_equal_scores_the_lower_number_wins() -> None:
    logits = torch.tensor([[0.5, 1.0, 1.0, 1.0, 0.5, 0.5, 1.0, 0.0], [0.0] * 8])
    check(logits, PLAIN, None)
    assert top_k(logits, PLAIN, None).experts.tolist() == [[1, 2, 3], [0, 1, 2]]
    wide = torch.zeros(3, 512)
    assert top_k(wide, spec.Router(512, 4), None).experts.tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.row("F06.13")
@pytest.mark.parametrize("norm", [1.0, 2.0])
@pytest.mark.parametrize("score", SCORES)
def test_renormalised_and_scaled(score: str, norm: float) -> None:
    router = replace(PLAIN, score=score, norm=norm, scale=2.5)
    check(torch.randn(6, 8), router, None)
    routing = top_k(torch.randn(6, 8), replace(router, norm=1.0), None)
    torch.testing.assert_close(routing.weights.sum(-1), torch.full((6,), 2.5))


@pytest.mark.row("F06.13")
def test_a_softmax_over_the_chosen_is_a_renormalised_softmax_over_all() -> None:
    logits = torch.randn(9, 8) * 20
    routing = top_k(logits, replace(PLAIN, norm=1.0), None)
    chosen = logits.gather(-1, routing.experts).softmax(-1)
    torch.testing.assert_close(routing.weights, chosen)


@pytest.mark.row("F06.13")
def test_the_norm_has_a_floor() -> None:
    router = replace(PLAIN, score="sigmoid", norm=1.0, norm_floor=0.5)
    check(torch.full((2, 8), -9.0), router, None)
    starved = top_k(torch.full((2, 8), -200.0), replace(router, norm_floor=0.0), None)
    assert starved.weights.isfinite().all()


@pytest.mark.row("F06.08")
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("correction", [None, torch.linspace(-1, 1, 12)])
def test_only_the_best_groups_take_part(width: int, correction: torch.Tensor | None) -> None:
    router = spec.Router(12, 3, "sigmoid", num_groups=4, top_groups=2, group_width=width, norm=1.0)
    check(torch.randn(20, 12), router, correction)
    check(torch.zeros(2, 12), router, correction)


@pytest.mark.row("F06.09")
def test_the_correction_moves_the_choice_but_not_the_weights() -> None:
    router = replace(PLAIN, score="sigmoid", norm=1.0, scale=1.8)
    correction = torch.tensor([0.0, 0, 0, 5, 0, 5, 0, 5])
    logits = torch.randn(10, 8)
    check(logits, router, correction)
    assert {*top_k(logits, router, correction).experts.flatten().tolist()} == {3, 5, 7}
    check(torch.zeros(2, 8), router, correction)
