"""The sampler of a GPU against that of the CPU: the same tokens for the same seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import Sampling
from baton_worker.sampling import PARAMETERS, Sampler, device_columns, fill
from baton_worker.sampling import philox as plain
from baton_worker.sampling.parameters import Parameters
from baton_worker.sampling.sampler import _fused

MIXED = [
    Sampling(1, temperature=0.0),
    Sampling(1),
    Sampling(1, temperature=0.6, top_p=0.9),
    Sampling(1, temperature=1.7, top_k=40, min_p=0.02),
    Sampling(1, top_p=0.3),
    Sampling(1, top_k=1),
    Sampling(1, min_p=0.5),
    Sampling(1, top_k=5000, top_p=0.99, temperature=1.3),
]
MOST_ROWS = 1024
"""Of one program: on a GPU it is one, in the interpreter as many as make it fast."""


def parameters(rows: int) -> Parameters:
    made = np.zeros(rows, PARAMETERS)
    for row in range(rows):
        given = {f: getattr(MIXED[row % len(MIXED)], f) for f in Sampling.__struct_fields__}
        fill(made[row], Sampling(**given | {"seed": row * 7919 + (row << 33)}))
    return made


def logits(rows: int, vocab: int, ties: bool) -> torch.Tensor:
    made = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    made = made.round() if ties else made
    made[::5, 1::3] = -torch.inf
    return made


@pytest.mark.row("F09.12", "F21.04")
@pytest.mark.parametrize(("rows", "vocab"), [(2048, 250), (64, 3000)])
@pytest.mark.parametrize("ties", [False, True])
def test_the_same_tokens_as_the_cpu(
    rows: int, vocab: int, ties: bool, device: torch.device
) -> None:
    given, chosen = logits(rows, vocab, ties), parameters(rows)
    index = np.arange(rows) % 50 + (1 << 35) * (np.arange(rows) % 2)
    each = 1 if device.type == "cuda" else min(rows, MOST_ROWS)
    found = _fused(given.to(device), chosen, index, each).cpu().numpy()
    assert np.array_equal(found, Sampler().sample(given, chosen, index))
    assert len(np.unique(found)) > min(rows, vocab) // 4


@pytest.mark.row("F21.04")
def test_a_row_has_the_same_token_beside_any_others(device: torch.device) -> None:
    given, chosen, index = logits(16, 200, False).to(device), parameters(16), np.arange(16)
    together = _fused(given, chosen, index, 16)
    for i in (1, 2, 3):
        alone = _fused(given[i : i + 1], chosen[i : i + 1], index[i : i + 1])
        assert int(alone[0]) == int(together[i])


@pytest.mark.row("F21.04")
def test_whether_logits_are_finite_is_found_beside_the_token(device: torch.device) -> None:
    given, chosen, index = logits(8, 200, False), parameters(8), np.arange(8)
    given[1, 150], given[2, 3], given[4] = torch.nan, torch.inf, -torch.inf
    given[6, :199] = -torch.inf
    expected = given.amax(1).isfinite()
    assert expected.tolist() == [True, False, False, True, False, True, True, True]
    columns = {n: torch.from_numpy(c).to(device) for n, c in device_columns(chosen).items()}
    on_device, there = given.to(device), torch.from_numpy(index).to(device)
    launch = Sampler().launch
    for greedy in (False, True):
        tokens, finite = launch(on_device.clone(), columns, there, greedy=greedy)
        assert torch.equal(finite.cpu(), expected) and int(tokens[6]) == 199
    found = launch(on_device, columns, there, greedy=False)[0].cpu()[expected]
    good = expected.numpy()
    wanted = Sampler().sample(given[expected], chosen[good], index[good])
    assert found.tolist() == wanted.tolist()


@pytest.mark.row("F21.04")
def test_random_numbers_have_the_same_bits(device: torch.device) -> None:
    from tests.fakes.triton_kernels import uniform

    random = np.random.default_rng(0)
    low, high = random.integers(0, 2**32, (2, 1024))
    index = random.integers(0, 2**40, 1024)
    low[:2], high[:2], index[:2] = 0, (0, 2**32 - 1), (0, 2**40)
    columns = [torch.from_numpy(x).to(device) for x in (low, high, index)]
    out = torch.zeros(1024, dtype=torch.float64, device=device)
    uniform[1,](*columns, out, SIZE=1024)
    assert np.array_equal(out.cpu().numpy(), plain.uniform(low, high, index))
