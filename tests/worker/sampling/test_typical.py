"""Locally typical sampling against a transcription of its definition with sorted lists."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from baton.protocol import Sampling
from baton_worker.sampling import PARAMETERS, Sampler, fill
from baton_worker.sampling.typical import keep_typical

pytestmark = pytest.mark.row("F09.06")


def kept_by_definition(probabilities: list[float], typical_p: float) -> set[int]:
    """The most typical ids whose mass reaches typical_p; ties with the last one kept are kept."""
    support = {i: p for i, p in enumerate(probabilities) if p > 0}
    entropy = -math.fsum(p * math.log(p) for p in support.values())
    deviation = {i: abs(-math.log(p) - entropy) for i, p in support.items()}
    mass, most = 0.0, 0.0
    for token in sorted(support, key=lambda i: deviation[i]):
        mass, most = mass + support[token], deviation[token]
        if mass >= typical_p * math.fsum(support.values()):
            break
    return {i for i in support if deviation[i] <= most}


def rows(count: int, vocab: int, spread: float, seed: int) -> Tensor:
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    return logits.softmax(1)


def kept(probabilities: Tensor, typical_p: list[float]) -> list[set[int]]:
    left = probabilities.clone()
    keep_typical(left, torch.tensor(typical_p, dtype=torch.float64))
    assert torch.equal(left, torch.where(left > 0, probabilities, 0.0))
    return [set(row.nonzero()[:, 0].tolist()) for row in left]


@pytest.mark.parametrize("typical_p", [0.05, 0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("spread", [0.5, 3.0, 10.0])
def test_equals_definition(typical_p: float, spread: float) -> None:
    probabilities = rows(16, 700, spread, seed=3)
    expected = [kept_by_definition(row.double().tolist(), typical_p) for row in probabilities]
    for found, wanted, row in zip(kept(probabilities, [typical_p] * 16), expected, probabilities,
                                  strict=True):  # fmt: skip
        # Float32 may order two tokens differently that deviate equally to seven digits.
        assert float(row[list(found ^ wanted)].sum()) < 1e-3 and len(found ^ wanted) <= 1


def test_rows_with_different_settings_and_off() -> None:
    probabilities = rows(4, 300, 2.0, seed=9)
    settings = [1.0, 0.3, 1.0, 0.8]
    together = kept(probabilities, settings)
    assert together[0] == together[2] == set(range(300))
    for i, row in enumerate(probabilities):
        assert kept(row[None], settings[i : i + 1]) == [together[i]]


def test_impossible_tokens_and_certainty() -> None:
    probabilities = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    assert kept(probabilities, [0.1, 0.1]) == [{1}, {0, 2}]


def test_distribution() -> None:
    """Chi-square of 20,000 draws of one seed; the bound is the 0.999 quantile of 11 degrees."""
    values = torch.linspace(3.0, -3.0, 12)
    probabilities = values.double().softmax(0)
    typical = sorted(kept_by_definition(probabilities.tolist(), 0.6))
    assert 1 < len(typical) < 12 and 0 not in typical[1:]
    row = np.zeros(1, PARAMETERS)
    fill(row[0], Sampling(1, seed=5, typical_p=0.6))
    tokens = Sampler().sample(values.repeat(20_000, 1), row.repeat(20_000), np.arange(20_000))
    counts = np.bincount(tokens, minlength=12)
    shares = probabilities[typical] / probabilities[typical].sum()
    expected = (shares * 20_000).numpy()
    assert counts[typical].sum() == 20_000
    assert ((counts[typical] - expected) ** 2 / expected).sum() < 31.3
