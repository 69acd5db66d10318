"""Kernels of state-space layers against their twin in torch."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.recurrent.ssm_states import (
    Blocks,
    Chains,
    Fading,
    PlainStates,
    Shape,
    Snapshots,
)

SHAPES = {
    "groups of heads, two tiles of tokens": (Shape(4, 2, 5, 7, 3, 16), 24, torch.bfloat16),
    "several tiles of channels": (Shape(1, 1, 80, 100, 0, 80), 4, torch.float32),
}


def case(
    shape: Shape, page_size: int, dtype: torch.dtype, device: torch.device, count: int
) -> tuple[Snapshots, Fading, torch.Generator]:
    """Pages that are parts of something larger, and how `count` of them fade."""
    generator = torch.Generator().manual_seed(0)
    width = shape.value + shape.heads * shape.value_dim + 2
    memory = torch.randn(5, page_size * width + 11, generator=generator).to(device, dtype)
    pages = memory[:, 4 : 4 + page_size * width].unflatten(1, (page_size, 1, 1, width))
    state = shape.heads, shape.key_dim, shape.value_dim
    states = torch.randn(5, *state, generator=generator).to(device)
    rates, weight = torch.rand(2, count, shape.heads, page_size, generator=generator).to(device)
    return Snapshots(pages, states), Fading(-rates.cumsum(-1), weight + 0.5), generator


@pytest.mark.row("F07.05")
@pytest.mark.parametrize(("shape", "page_size", "dtype"), SHAPES.values(), ids=SHAPES.keys())
def test_states_and_outputs_are_those_of_the_twin(
    shape: Shape, page_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    """A row goes on with the last token of page 4, through 1 into 3; another within page 2. Entry 3
    is of none of them."""
    from baton_worker.kernels.triton.recurrent.ssm_states import TritonStates

    pages, fading, generator = case(shape, page_size, dtype, device, 5)
    twin, others = PlainStates(shape), pages.states[[0, 2, 4]].clone()
    ends = [0, 1, page_size + 1, page_size + 3, page_size + 3, page_size + 4]
    columns = ([0, 4], [3, 5], [4, 1, 3, 0, 2], [page_size - 1, 0, 0, -1, 2], ends)
    chains = Chains(*(torch.tensor(column, device=device) for column in columns))
    query = torch.randn(ends[-1], shape.groups, shape.key_dim, generator=generator).to(device)
    for entry in range(2):
        before, begun = chains.pages[entry : entry + 1], chains.pages[entry + 1 : entry + 2]
        twin.carry(pages, before, begun, Fading(*(part[entry : entry + 1] for part in fading)))
    used = torch.tensor([0, 1, 2, 4], device=device)
    blocks = Blocks(chains.pages[used], chains.begins[[0, 1, 2, 4, 5]], chains.firsts[used])
    wanted = twin.read(pages, query, blocks, Fading(*(part[used] for part in fading)))
    expected = pages.states.clone()
    pages.states[[1, 3]] = float("nan")
    found = TritonStates(shape).walk(pages, query, chains, fading)
    torch.testing.assert_close(pages.states, expected, rtol=1e-5, atol=1e-4)
    assert pages.states[[0, 2, 4]].equal(others)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-3)


def test_bits_depend_on_no_other_query_and_on_nothing_later(device: torch.device) -> None:
    from baton_worker.kernels.triton.recurrent.ssm_states import TritonStates

    shape = Shape(2, 1, 20, 9, 0, 20)
    pages, fading, generator = case(shape, 18, torch.float32, device, 1)
    query = torch.randn(18, 1, 20, generator=generator).to(device)
    kernel = TritonStates(shape)
    start, page = torch.tensor([[0], [3]], device=device)
    together = kernel.walk(
        pages, query, Chains(start, start + 1, page, start, page.new_tensor([0, 18])), fading
    )
    for token in (17, 3):  # Backwards: what lies behind is overwritten.
        pages.tokens[3, token + 1 :] = float("nan")
        alone = Chains(start, start + 1, page, start + token, page.new_tensor([0, 1]))
        [row] = kernel.walk(pages, query[token : token + 1], alone, fading)
        assert row.equal(together[token])
