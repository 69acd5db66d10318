"""The result of an elementwise function does not depend on a value's place in a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from baton_worker.layers.invariant import (
    GELU,
    GELU_TANH,
    QUICK_GELU,
    SILU,
    exp,
    exp2,
    sigmoid,
    softplus,
    tanh,
)

FUNCTIONS = {
    "silu": SILU,
    "gelu": GELU,
    "tanh form": GELU_TANH,
    "quick form": QUICK_GELU,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "exp": exp,
    "exp2": exp2,
    "softplus": softplus,
}
DTYPES = (torch.float32, torch.bfloat16)
SHAPES = ((7, 1), (11, 48), (3, 130), (13, 10_240), (9, 9_999))


@pytest.fixture
def threads() -> Iterator[None]:
    """Put the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_has_the_same_bits_alone(name: str) -> None:
    function: Callable[[Tensor], Tensor] = FUNCTIONS[name]
    for threads, dtype, (rows, width) in product((1, 2, 3), DTYPES, SHAPES):
        torch.set_num_threads(threads)
        case = f"{rows} rows of {width} in {dtype} by {threads} threads"
        x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(dtype)
        together = function(x)
        assert together.shape == x.shape and together.dtype == dtype, case
        for row in range(rows):
            assert torch.equal(function(x[row]), together[row]), case
            assert torch.equal(function(x[row:]), together[row:]), case


def test_columns_of_something_wider() -> None:
    x = torch.randn(5, 96)
    assert torch.equal(SILU(x[:, ::2]), SILU(x[:, ::2].clone()))


def test_nothing_at_all() -> None:
    assert SILU(torch.empty(0, 48)).shape == (0, 48) and not GELU(torch.tensor(0.0))
