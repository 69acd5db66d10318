"""The draw: by definition, by distribution, and independent of the rest of the batch."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from baton.protocol import Sampling
from baton_worker.sampling import PARAMETERS, Parameters, Sampler, fill
from baton_worker.sampling.philox import uniform
from baton_worker.sampling.sampler import Tokens, invert

VOCAB = 1000


def columns(*samplings: Sampling) -> Parameters:
    rows = np.zeros(len(samplings), PARAMETERS)
    for row, sampling in zip(rows, samplings, strict=True):
        fill(row, sampling)
    return rows


def logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.row("F09.01", "F09.13")
def test_greedy_takes_the_first_maximum() -> None:
    values = torch.tensor([[1.0, 5.0, 5.0], [3.0, 2.0, 1.0]])
    tokens = Sampler().sample(
        values, columns(*[Sampling(1, temperature=0.0)] * 2), np.zeros(2, np.int64)
    )
    assert tokens.tolist() == [1, 0]


def chosen_by_definition(values: Tensor, temperature: float, seed: int, index: int) -> int:
    """The first token in vocabulary order whose cumulative probability exceeds the uniform."""
    low, high = np.array([seed & 0xFFFFFFFF]), np.array([seed >> 32])
    u = uniform(low, high, np.array([index]))[0]
    probabilities = (values.double() / temperature).softmax(0).tolist()
    sums = itertools.accumulate(probabilities)
    return next((token for token, total in enumerate(sums) if total > u), len(probabilities) - 1)


@pytest.mark.row("F09.02", "F09.13")
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_random_rows_equal_definition(temperature: float) -> None:
    values = logits(64)
    samplings = [Sampling(1, seed=2**40 + s, temperature=temperature) for s in range(64)]
    index = np.arange(64) * 7
    tokens = Sampler().sample(values.clone(), columns(*samplings), index)
    expected = [
        chosen_by_definition(row, temperature, sampling.seed, int(i))
        for row, sampling, i in zip(values, samplings, index, strict=True)
    ]
    assert tokens.tolist() == expected


MIXED = [
    Sampling(1, temperature=0.0),
    Sampling(1, seed=1),
    Sampling(1, seed=2, top_k=5),
    Sampling(1, seed=3, top_p=0.5, temperature=0.7),
    Sampling(1, seed=4, min_p=0.2),
    Sampling(1, temperature=0.0, top_k=4),
    Sampling(1, seed=5, top_k=600, top_p=0.99, temperature=3.0),
]


@pytest.mark.row("F09.01", "F09.02", "F09.03", "F09.04", "F09.05")
def test_a_row_does_not_depend_on_its_batch() -> None:
    values, parameters = logits(len(MIXED)), columns(*MIXED)
    index = np.arange(len(MIXED)) + 100
    together = Sampler().sample(values.clone(), parameters, index).tolist()
    alone = [
        Sampler().sample(values[i : i + 1].clone(), parameters[i : i + 1], index[i : i + 1])[0]
        for i in range(len(MIXED))
    ]
    order = np.array([3, 0, 6, 2, 5, 1, 4])
    shuffled = Sampler().sample(values[order], parameters[order], index[order])
    assert together == alone
    assert shuffled.tolist() == [together[i] for i in order]


@pytest.mark.row("F09.02", "F09.04")
@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(1, seed=11), 12),
        (Sampling(1, seed=12, temperature=0.5), 12),
        (Sampling(1, seed=13, top_k=4), 4),
        (Sampling(1, seed=14, top_p=0.8), None),
    ],
)
def test_distribution(sampling: Sampling, kept: int | None) -> None:
    """Chi-square of 20,000 draws of one seed; the bound is the 0.999 quantile of 11 degrees."""
    values = torch.linspace(1.0, -1.0, 12)
    probabilities = (values.double() / sampling.temperature).softmax(0)
    if kept is None:
        kept = int((probabilities.cumsum(0) < sampling.top_p).sum()) + 1
    shares = torch.where(torch.arange(12) < kept, probabilities, 0.0)
    expected = (shares / shares.sum() * 20_000).numpy()
    tokens = Sampler().sample(
        values.repeat(20_000, 1),
        columns(sampling).repeat(20_000),
        np.arange(20_000, dtype=np.int64),
    )
    counts = np.bincount(tokens, minlength=12)
    assert not counts[kept:].any()
    statistic = ((counts[:kept] - expected[:kept]) ** 2 / expected[:kept]).sum()
    assert statistic < 31.3


@pytest.mark.row("F09.02")
def test_requests_draw_independently_of_one_another_and_tokens_of_those_before() -> None:
    """Chi-square of pairs: the first two tokens of 20,000 seeds, and neighbours in one log. The
    bound is the 0.999 quantile of 35 degrees; a draw that is off by 5 % is beyond it."""
    values = torch.linspace(0.5, -0.5, 6)
    shares = values.double().softmax(0).numpy()

    def statistic(first: Tokens, second: Tokens, shares: npt.NDArray[np.float64]) -> float:
        counts = np.bincount(first.astype(np.int64) * 6 + second, minlength=36)
        expected = np.outer(shares, shares).ravel() * len(first)
        return float(((counts - expected) ** 2 / expected).sum())

    def drawn(parameters: Parameters, index: npt.NDArray[np.int64]) -> Tokens:
        return Sampler().sample(values.repeat(len(index), 1), parameters, index)

    seeds = np.concatenate([columns(Sampling(1, seed=seed)) for seed in range(20_000)])
    ends = [drawn(seeds, np.full(20_000, at, np.int64)) for at in (0, 1)]
    log = drawn(columns(Sampling(1, seed=5)).repeat(40_000), np.arange(40_000, dtype=np.int64))
    for pair in (ends, [log[::2], log[1::2]]):
        assert statistic(pair[0], pair[1], shares) < 66.6
        off = shares * np.array([1.05, 1.05, 1.05, 0.95, 0.95, 0.95])
        assert statistic(pair[0], pair[1], off / off.sum()) > 66.6
    assert statistic(log[::2], log[::2], shares) > 66.6, "tokens that depend on one another"


def test_extreme_temperatures_stay_finite() -> None:
    values = torch.tensor([[1e4, -1e4, 9e3]] * 2)
    samplings = [Sampling(1, temperature=1.1e-5), Sampling(1, temperature=1e6, seed=3)]
    tokens = Sampler().sample(values, columns(*samplings), np.array([0, 0]))
    assert tokens[0] == 0 and 0 <= tokens[1] < 3


@pytest.mark.parametrize("vocab", [1, 127, 128, 129, 1000])
def test_invert_never_takes_weight_zero(vocab: int) -> None:
    weights = torch.zeros(3, vocab)
    weights[0, vocab // 2] = 1e-30
    weights[1, [0, -1]] = 1.0
    weights[2, : vocab // 3 + 1] = 3e-8
    for u in (1e-16, 0.25, 0.5, 0.75, 1 - 2**-53):
        tokens = invert(weights, torch.full((3,), u, dtype=torch.float64))
        assert (weights.gather(1, tokens[:, None]) > 0).all()


def test_invert_at_the_edges_of_shares() -> None:
    weights = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).repeat(5, 1)
    uniforms = torch.tensor([0.1, 0.25, 0.74, 0.75, 0.99], dtype=torch.float64)
    assert invert(weights, uniforms).tolist() == [0, 2, 2, 3, 3]
