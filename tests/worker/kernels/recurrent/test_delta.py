"""Delta nets over pages against the recurrence, token by token in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.kernels.recurrent.delta import CpuDelta, Shape
from baton_worker.kernels.recurrent.ssm_states import Chains, Snapshots

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.row("F04.18", "F07.13", "F23.06")]
CPU = torch.device("cpu")
SHAPES = {
    "odd": Shape(2, 13, heads=4, key_heads=2, key_dim=5, value_dim=7, channels=1),
    "whole vectors": Shape(64, 0, 2, 2, 32, 32, 1),
    "a decay per channel": Shape(3, 40, 3, 3, 9, 21, 9),
    "one channel": Shape(0, 1, 1, 1, 1, 1, 1),
}
PAGE = 20
CHAINS = Chains(
    *(torch.tensor(x) for x in ([0, 3], [3, 4], [4, 0, 2, 5], [18, 0, 0, 3], [0, 2, 22, 27, 31]))
)
"""A row that goes on with token 18 of page 4, through 0 into 2; another within page 5."""
ASKED = [(4, 18, 20), (0, 0, 20), (2, 0, 5), (5, 3, 7)]
"""Of each page, which tokens ask."""


@pytest.fixture
def seeded() -> Any:
    if reason := CpuDelta.refuses(torch.float32, CPU):
        pytest.skip(reason)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def given(shape: Shape, dtype: torch.dtype) -> tuple[Snapshots, Tensor, Tensor, Tensor]:
    """Pages that are parts of something larger, queries, strengths and decays."""
    key, value = shape.key_heads * shape.key_dim, shape.heads * shape.value_dim
    width = max(shape.key + key, shape.value + value) + 2
    memory = torch.randn(6, PAGE * width + 11).to(dtype)
    tokens = memory[:, 4 : 4 + PAGE * width].unflatten(1, (PAGE, 1, 1, width))
    states = torch.randn(6, shape.heads * shape.key_dim * shape.value_dim + 3)[:, 3:]
    state = states.unflatten(1, (shape.heads, shape.key_dim, shape.value_dim))
    query = torch.randn(31, shape.key_heads, shape.key_dim)
    strength = 2 * torch.rand(4, PAGE, shape.heads)
    decay = -2 * torch.rand(4, PAGE, shape.heads, shape.channels)
    return Snapshots(tokens, state), query, strength, decay


def unit(x: Tensor, shape: Shape) -> Tensor:
    """[..., key_heads * key_dim] to one vector of length 1 for each head."""
    heads = x.double().unflatten(-1, (shape.key_heads, shape.key_dim))
    heads = heads / (heads.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    return heads.repeat_interleave(shape.heads // shape.key_heads, -2)


def expected(shape: Shape, pages: Snapshots, *rest: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """What queries find, and states of the pages that begin."""
    query, strength, decay = rest
    found, begun, state = list[Tensor](), dict[int, Tensor](), torch.zeros(0)
    asked = unit(query.flatten(1), shape) * shape.key_dim**-0.5
    for entry, (page, first, last) in enumerate(ASKED):
        if entry in (0, 3):
            state = pages.states[page].double()
        else:
            begun[page] = state
        for token in range(last):
            row = pages.tokens[page, token, 0, 0].double()
            k = unit(row[shape.key :][: shape.key_heads * shape.key_dim], shape)
            v = row[shape.value :][: shape.heads * shape.value_dim].view(shape.heads, -1)
            state = decay[entry, token].double().exp()[..., None] * state
            news = v - torch.einsum("hk,hkv->hv", k, state)
            added = strength[entry, token].double()[:, None] * news
            state = state + k[..., None] * added[:, None]
            if token >= first:
                found.append(torch.einsum("hk,hkv->hv", asked[len(found)], state))
    return torch.stack(found), begun


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pages_are_walked_like_the_recurrence(shape: Shape, dtype: torch.dtype) -> None:
    pages, query, strength, decay = given(shape, dtype)
    wanted, begun = expected(shape, pages, query, strength, decay)
    others = pages.states[[1, 3, 4, 5]].clone()
    out = CpuDelta(shape)(pages, query, CHAINS, strength, decay)
    assert out.dtype is torch.float32 and out.shape == (31, shape.heads, shape.value_dim)
    torch.testing.assert_close(out.double(), wanted, atol=2e-5, rtol=1e-4)
    for page, state in begun.items():
        torch.testing.assert_close(pages.states[page].double(), state, atol=2e-5, rtol=1e-4)
    assert torch.equal(pages.states[[1, 3, 4, 5]], others)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_where_all_is_forgotten_nothing_is_no_number(shape: Shape) -> None:
    """There a quotient of decays would be 0 / 0."""
    pages, query, strength, decay = given(shape, torch.float32)
    decay[:, 3:] -= 1000
    wanted, _ = expected(shape, pages, query, strength, decay)
    out = CpuDelta(shape)(pages, query, CHAINS, strength, decay)
    torch.testing.assert_close(out.double(), wanted, atol=2e-5, rtol=1e-4)


def test_what_it_has_no_code_for_is_refused() -> None:
    assert "no torch.float16" in str(CpuDelta.refuses(torch.float16, CPU))
    assert "not on the CPU" in str(CpuDelta.refuses(torch.float32, torch.device("meta")))
