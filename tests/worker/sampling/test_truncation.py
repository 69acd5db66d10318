"""Thresholds against a transcription of each definition with sorted lists."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from baton_worker.sampling import truncation


def kept_by_definition(
    probabilities: list[float], top_k: int, top_p: float, min_p: float
) -> set[int]:
    """The ids that min-p, then top-k, then top-p keep; ties with the last one kept are kept."""
    weights = dict(enumerate(probabilities))
    best = max(weights.values())
    weights = {i: w for i, w in weights.items() if w >= min_p * best}
    if 0 < top_k < len(weights):
        kth = sorted(weights.values())[-top_k]
        weights = {i: w for i, w in weights.items() if w >= kth}
    if top_p < 1:
        total, mass = math.fsum(weights.values()), 0.0
        for weight in sorted(weights.values(), reverse=True):
            mass += weight
            least = weight
            if mass >= top_p * total:
                break
        weights = {i: w for i, w in weights.items() if w >= least}
    return set(weights)


def rows(count: int, vocab: int, spread: float, seed: int) -> Tensor:
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    return logits.softmax(1)


def kept(
    probabilities: Tensor, top_k: list[int], top_p: list[float], min_p: list[float]
) -> list[set[int]]:
    least = truncation.threshold(
        probabilities,
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor(min_p, dtype=torch.float64),
    )
    return [set(row.nonzero()[:, 0].tolist()) for row in probabilities >= least[:, None]]


SETTINGS = [
    pytest.param(1, 1.0, 0.0, id="k1", marks=pytest.mark.row("F09.03")),
    pytest.param(40, 1.0, 0.0, id="k40", marks=pytest.mark.row("F09.03")),
    pytest.param(5000, 1.0, 0.0, id="k-beyond-vocabulary", marks=pytest.mark.row("F09.03")),
    pytest.param(0, 0.9, 0.0, id="p0.9", marks=pytest.mark.row("F09.04")),
    pytest.param(0, 0.1, 0.0, id="p0.1", marks=pytest.mark.row("F09.04")),
    pytest.param(0, 0.999, 0.0, id="p0.999", marks=pytest.mark.row("F09.04")),
    pytest.param(0, 1.0, 0.05, id="min-p", marks=pytest.mark.row("F09.05")),
    pytest.param(0, 1.0, 1.0, id="min-p-1", marks=pytest.mark.row("F09.05")),
    pytest.param(50, 0.8, 0.01, id="all", marks=pytest.mark.row("F09.03", "F09.04", "F09.05")),
    pytest.param(700, 0.95, 0.0, id="wide-k-and-p"),
    pytest.param(0, 1.0, 0.0, id="none"),
]


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), SETTINGS)
def test_equals_definition(top_k: int, top_p: float, min_p: float, spread: float) -> None:
    probabilities = rows(4, 3000, spread, seed=7)
    found = kept(probabilities, [top_k] * 4, [top_p] * 4, [min_p] * 4)
    for row, ids in zip(probabilities.tolist(), found, strict=True):
        assert ids == kept_by_definition(row, top_k, top_p, min_p)


def test_rows_do_not_depend_on_each_other() -> None:
    probabilities = rows(len(SETTINGS), 3000, 2.0, seed=1)
    columns = [list(column) for column in zip(*(p.values for p in SETTINGS), strict=True)]
    together = kept(probabilities, *columns)
    for row, parameters in enumerate(zip(*columns, strict=True)):
        alone = kept(probabilities[row : row + 1], *([value] for value in parameters))
        assert alone == [together[row]]


def test_ties_are_kept_together() -> None:
    probabilities = torch.tensor([[0.4, 0.2, 0.2, 0.2]])
    assert kept(probabilities, [2], [1.0], [0.0]) == [{0, 1, 2, 3}]
    assert kept(probabilities, [0], [0.5], [0.0]) == [{0, 1, 2, 3}]
    assert kept(probabilities, [0], [0.3], [0.0]) == [{0}]


def test_forbidden_tokens_stay_out() -> None:
    probabilities = torch.tensor([[0.7, 0.3, 0.0]])
    assert kept(probabilities, [0], [0.9999], [0.0]) == [{0, 1}]
