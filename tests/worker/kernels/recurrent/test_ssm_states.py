"""What tokens add to states and read of them, in C++ and in torch, against the definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.kernels.recurrent.ssm_states import (
    Blocks,
    Chains,
    CpuStates,
    Fading,
    PlainStates,
    Shape,
    Snapshots,
    choose,
)

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    pytest.mark.row("F04.17", "F04.20", "F07.05", "F07.06", "F07.07", "F07.08", "F07.09"),
]
CPU = torch.device("cpu")
SHAPE = Shape(heads=6, groups=2, key_dim=5, value_dim=7, key=3, value=16)
SHAPES = {
    "odd": SHAPE,
    "whole vectors": Shape(2, 1, 32, 64, 0, 32),
    "wide": Shape(3, 3, 8, 100, 300, 0),
    "one channel": Shape(1, 1, 1, 1, 1, 0),
}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(params=["plain", "cpu"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Makes a kernel."""
    if request.param == "plain":
        return lambda shape, dtype: PlainStates(shape)
    if (reason := CpuStates.refuses(torch.float32, CPU)) is not None:
        pytest.skip(reason)
    return Walked


class Walked:
    """The kernel in C++ with the methods of the twin."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self._kernel = CpuStates(shape, dtype)

    def carry(self, pages: Snapshots, before: Tensor, begun: Tensor, fading: Fading) -> None:
        """Each page is a sequence with the one that begins behind it."""
        twice = Fading(*(part.repeat_interleave(2, 0) for part in fading))
        starts = torch.arange(0, 2 * len(before), 2)
        firsts = torch.tensor([pages.tokens.shape[1], 0]).repeat(len(before))
        begins = torch.zeros(2 * len(before) + 1, dtype=torch.int64)
        numbers = torch.stack((before, begun), 1).flatten()
        chains = Chains(starts, starts + 2, numbers, firsts, begins)
        query = torch.empty(0, self._kernel._shape.groups, self._kernel._shape.key_dim)
        self._kernel.walk(pages, query, chains, twice)

    def read(self, pages: Snapshots, query: Tensor, blocks: Blocks, fading: Fading) -> Tensor:
        """Each block is a sequence."""
        starts = torch.arange(len(blocks.pages))
        chains = Chains(starts, starts + 1, blocks.pages, blocks.firsts, blocks.begins)
        return self._kernel.walk(pages, query, chains, fading)


def snapshots(shape: Shape, page_size: int, dtype: torch.dtype, num_pages: int = 6) -> Snapshots:
    """Pages that are parts of something larger."""
    key, value = shape.groups * shape.key_dim, shape.heads * shape.value_dim
    width = max(shape.key + key, shape.value + value) + 2
    memory = torch.randn(num_pages, page_size * width + 11).to(dtype)
    pages = memory[:, 4 : 4 + page_size * width].unflatten(1, (page_size, 1, 1, width))
    states = torch.randn(num_pages, shape.heads * shape.key_dim * shape.value_dim + 3)
    state = states[:, 3:].unflatten(1, (shape.heads, shape.key_dim, shape.value_dim))
    return Snapshots(pages, state)


def fading(count: int, shape: Shape, page_size: int) -> Fading:
    rates = torch.rand(count, shape.heads, page_size)
    return Fading(-rates.cumsum(-1), torch.rand(count, shape.heads, page_size) + 0.5)


def rows(pages: Snapshots, shape: Shape, page: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a page per head, float64 [heads, page_size, dim]."""
    tokens = pages.tokens[page].flatten(1).double()
    key = tokens[:, shape.key :][:, : shape.groups * shape.key_dim]
    value = tokens[:, shape.value :][:, : shape.heads * shape.value_dim]
    keys = key.unflatten(1, (shape.groups, -1)).repeat_interleave(shape.heads // shape.groups, 1)
    return keys.transpose(0, 1), value.unflatten(1, (shape.heads, -1)).transpose(0, 1)


def states_of(pages: Snapshots, shape: Shape, page: int, fading: Fading, item: int) -> list[Tensor]:
    """After each token of a page, float64 [heads, key_dim, value_dim]."""
    (key, value), state = rows(pages, shape, page), pages.states[page].double()
    faded, weight = (part[item].double() for part in fading)
    left = torch.diff(faded, dim=1, prepend=torch.zeros(shape.heads, 1)).exp()
    every = list[Tensor]()
    for j in range(key.shape[1]):
        added = weight[:, j, None, None] * key[:, j, :, None] * value[:, j, None]
        state = left[:, j, None, None] * state + added
        every.append(state)
    return every


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("page_size", [1, 4, 16, 24])
def test_the_next_page_begins_with_the_state_after_the_last_token(
    kind: Any, shape: Shape, dtype: torch.dtype, page_size: int
) -> None:
    pages, left = snapshots(shape, page_size, dtype), fading(2, shape, page_size)
    expected = [states_of(pages, shape, page, left, n)[-1] for n, page in enumerate((4, 0))]
    others = pages.states[[0, 2, 4, 5]].clone()
    before, begun = torch.tensor([4, 0]), torch.tensor([1, 3])
    kind(shape, dtype).carry(pages, before, begun, left)
    found = pages.states[begun].double()
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-5)
    assert torch.equal(pages.states[[0, 2, 4, 5]], others)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_queries_read_the_state_after_their_own_token(
    kind: Any, shape: Shape, dtype: torch.dtype
) -> None:
    pages, left = snapshots(shape, 16, dtype), fading(3, shape, 16)
    numbers, begins, firsts = [2, 5, 0], [0, 1, 12, 28], [15, 3, 0]
    query = torch.randn(28, shape.groups, shape.key_dim)
    blocks = Blocks(*(torch.tensor(part) for part in (numbers, begins, firsts)))
    out = kind(shape, dtype).read(pages, query, blocks, left)
    assert out.dtype is torch.float32 and out.shape == (28, shape.heads, shape.value_dim)
    wide = query.double().repeat_interleave(shape.heads // shape.groups, 1)
    for n, page in enumerate(numbers):
        states = states_of(pages, shape, page, left, n)
        for token in range(begins[n], begins[n + 1]):
            state = states[firsts[n] + token - begins[n]]
            expected = (wide[token][:, None] @ state)[:, 0]
            torch.testing.assert_close(out[token].double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_depend_on_no_other_query_and_on_nothing_later(kind: Any, dtype: torch.dtype) -> None:
    shape = replace(SHAPE, key_dim=48, value_dim=40, value=99)
    pages, left, kernel = snapshots(shape, 16, dtype), fading(1, shape, 16), kind(shape, dtype)
    query = torch.randn(16, 2, 48)
    whole = Blocks(torch.tensor([3]), torch.tensor([0, 16]), torch.tensor([0]))
    together = kernel.read(pages, query, whole, left)
    for token in (15, 6, 1, 0):  # Backwards: what lies behind is overwritten.
        pages.tokens[3, token + 1 :] = 1e3
        alone = Blocks(torch.tensor([3]), torch.tensor([0, 1]), torch.tensor([token]))
        [row] = kernel.read(pages, query[token : token + 1], alone, left)
        assert torch.equal(row, together[token])


def test_nothing_is_left_of_what_has_faded(kind: Any) -> None:
    """Logarithms may be so low that no float is left of the exponential."""
    pages = snapshots(SHAPE, 4, torch.float32)
    left = Fading(torch.tensor([-1e4, -2e4, -3e4, -4e4]).expand(1, 6, 4), torch.ones(1, 6, 4))
    kind(SHAPE, torch.float32).carry(pages, torch.tensor([0]), torch.tensor([1]), left)
    key, value = rows(pages, SHAPE, 0)
    expected = (key[:, -1, :, None] * value[:, -1, None]).float()
    torch.testing.assert_close(pages.states[1], expected)


def test_the_twin_serves_where_the_kernel_does_not() -> None:
    assert isinstance(choose(SHAPE, torch.float64, CPU), PlainStates)
    assert "no torch.float16" in str(CpuStates.refuses(torch.float16, CPU))
    assert "not on the CPU" in str(CpuStates.refuses(torch.float32, torch.device("meta")))
