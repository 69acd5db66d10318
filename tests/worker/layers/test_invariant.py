"""The result of an elementwise function does not depend on a value's place in a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from baton_worker.layers.invariant import (
    GELU,
    GELU_TANH,
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
    "sigmoid": sigmoid,
    "tanh": tanh,
    "exp": exp,
    "exp2": exp2,
    "softplus": softplus,
}


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("rows", "width"), [(7, 1), (11, 48), (3, 130), (13, 10_240), (9, 9_999)])
def test_a_row_has_the_same_bits_alone(
    name: str, rows: int, width: int, dtype: torch.dtype
) -> None:
    function: Callable[[Tensor], Tensor] = FUNCTIONS[name]
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    together = function(x)
    assert together.shape == x.shape and together.dtype == dtype
    for row in range(rows):
        assert torch.equal(function(x[row]), together[row])
        assert torch.equal(function(x[row:]), together[row:])


def test_columns_of_something_wider() -> None:
    x = torch.randn(5, 96)
    assert torch.equal(SILU(x[:, ::2]), SILU(x[:, ::2].clone()))


def test_nothing_at_all() -> None:
    assert SILU(torch.empty(0, 48)).shape == (0, 48) and not GELU(torch.tensor(0.0))
