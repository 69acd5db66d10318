"""Draws in C++ against those in torch: the same tokens for the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from baton.protocol import Sampling
from baton_worker.kernels import sampling as kernels
from baton_worker.kernels.sampling import draw, most_probable
from baton_worker.sampling import (
    PARAMETERS,
    Parameters,
    Sampler,
    fill,
)
from baton_worker.sampling.sampler_backend import SamplerBackend

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    kernels.refuses(CPU) is not None, reason="the CPU kernels cannot be built here"
)
MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 1.7, "top_k": 40, "min_p": 0.02},
    {"top_p": 0.3},
    {"top_k": 1},
    {"min_p": 0.5},
    {"top_k": 5000, "top_p": 0.99, "temperature": 1.3},
    {"top_k": 9, "top_p": 0.6},
    {"min_p": 0.1, "top_p": 0.7, "temperature": 2.0},
    {"top_p": 1e-9},
    {"min_p": 1.0},
    {"typical_p": 0.5},
    {"typical_p": 0.9, "top_p": 0.8},
    {"temperature": 0.00002},
    {"temperature": 100.0, "top_p": 0.999},
]


@pytest.mark.parametrize("vocab", [1, 37, 128, 4099])
def test_the_most_probable_token_is_the_first_and_numbers_are_checked(vocab: int) -> None:
    for ties in (False, True):
        ours = logits(11, vocab, ties)
        assert most_probable(ours).tolist() == ours.argmax(1).tolist()
        for row, number in enumerate((torch.nan, torch.inf, -torch.inf)):
            ours[row, vocab // 2 :] = number
        ours[2] = -torch.inf
        assert (most_probable(ours) >= 0).tolist() == ours.amax(1).isfinite().tolist()


def parameters(rows: int) -> Parameters:
    made = np.zeros(rows, PARAMETERS)
    for row in range(rows):
        fill(made[row], Sampling(1, seed=row * 7919 + (row << 33), **MIXED[row % len(MIXED)]))
    return made


def logits(rows: int, vocab: int, ties: bool = False) -> Tensor:
    made = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    made = made.round() if ties else made
    made[::5, 1::3] = -torch.inf
    return made


def tokens(name: str, given: Tensor, how: Parameters, index: Any) -> npt.NDArray[np.int32]:
    return Sampler(SamplerBackend.named(name, CPU)).sample(given.clone(), how, index)


@pytest.mark.row("F09.13")
@pytest.mark.parametrize(
    ("rows", "vocab"), [(2100, 250), (210, 3000), (280, 129), (28, 49152), (70, 17), (28, 1)]
)
@pytest.mark.parametrize("ties", [False, True])
def test_the_same_tokens_as_torch(rows: int, vocab: int, ties: bool) -> None:
    given, how = logits(rows, max(vocab, 2), ties)[:, :vocab], parameters(rows)
    index = np.arange(rows) % 50 + (1 << 35) * (np.arange(rows) % 2)
    found = tokens("cpu", given, how, index)
    assert np.array_equal(found, tokens("torch", given, how, index))
    assert found.dtype == np.int32 and len(np.unique(found)) > min(rows, vocab) // 8


def test_a_flat_distribution_needs_all_of_a_vocabulary() -> None:
    """Its nucleus is wider than any first look."""
    given, how = torch.randn(14, 20000) * 0.01, np.zeros(14, PARAMETERS)
    for row, top_p in enumerate(np.linspace(0.05, 0.999, 14)):
        fill(how[row], Sampling(1, seed=row, top_p=float(top_p)))
    index = np.arange(14)
    assert np.array_equal(tokens("cpu", given, how, index), tokens("torch", given, how, index))


def test_a_steep_one_is_looked_at_again() -> None:
    """Almost all of its weights are too small for the first look, and top-k wants many of them."""
    given, how = -torch.arange(3000.0).repeat(4, 1) / 20, np.zeros(4, PARAMETERS)
    for row, top_k in enumerate((100, 300, 1500, 2999)):
        fill(how[row], Sampling(1, seed=row, top_k=top_k, temperature=3.0))
    index = np.arange(4)
    assert np.array_equal(tokens("cpu", given, how, index), tokens("torch", given, how, index))


@pytest.mark.row("F09.13")
def test_a_row_has_the_same_token_beside_any_others() -> None:
    given, how, index = logits(42, 500), parameters(42), np.arange(42)
    together = tokens("cpu", given, how, index)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert np.array_equal(tokens("cpu", given, how, index), together)
    finally:
        torch.set_num_threads(before)
    for row in range(42):
        alone = slice(row, row + 1)
        assert tokens("cpu", given[alone], how[alone], index[alone])[0] == together[row]


def test_a_token_of_no_weight_is_never_drawn() -> None:
    """Not even by the numbers next to both ends."""
    given = torch.full((4, 300), -torch.inf)
    given[:, 150:153] = torch.tensor([0.0, 1.0, 0.5])
    ends = np.array([np.nextafter(0, 1), 1e-12, 1 - 1e-12, np.nextafter(1, 0)])
    ones = np.ones(4)
    found = draw(
        given.clone(),
        warmth=ones.astype(np.float32),
        top_k=np.zeros(4, np.int64),
        top_p=ones,
        min_p=np.zeros(4),
        uniform=ends,
    )
    assert found.tolist() == [150, 150, 152, 152]


def drawn(given: Tensor, uniform: float) -> int:
    """What one row of logits gives, of which everything is kept."""
    one = np.ones(1)
    columns = {"top_k": np.zeros(1, np.int64), "top_p": one, "min_p": np.zeros(1)}
    numbers = {"warmth": one.astype(np.float32), "uniform": np.array([uniform])}
    return int(draw(given.clone()[None], **columns, **numbers)[0])


def test_a_number_at_a_border_belongs_to_the_token_behind_it() -> None:
    given = torch.zeros(4)
    assert [drawn(given, share) for share in (0.2499, 0.25, 0.5, 0.7501)] == [0, 1, 2, 3]


def test_sums_that_were_rounded_up_do_not_lead_beyond_the_last_token() -> None:
    """In floats, one and four times 0.9e-7 are more than they are."""
    given = torch.full((128,), -torch.inf)
    given[0] = 0.0
    given[[16, 32, 48, 64]] = float(np.log(0.9e-7))
    assert drawn(given, 1 - 1e-12) == 64


def test_what_a_gpu_holds_is_refused() -> None:
    assert kernels.refuses(torch.device("cuda")) == "the CPU kernels do not run there"
