"""Pages in either memory layout: the same tensor when indexed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baton_worker.kernels.kv_codes import CODES, KVCodes, row_width
from baton_worker.kernels.kv_pages import gather, put, scatter
from baton_worker.kernels.page_layout import Layout, strides

CPU = torch.device("cpu")
SHAPE = (5, 4, 2, 3, 8)
each_layout = pytest.mark.parametrize("layout", Layout)


def random(layout: Layout, shape: tuple[int, int, int, int, int] = SHAPE) -> torch.Tensor:
    made = layout.zeros(shape, dtype=torch.float32, device=CPU)
    return made.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(0)))


@each_layout
def test_a_page_is_one_block_of_memory_in_its_order(layout: Layout) -> None:
    pages = random(layout)
    order = (0, 1, 2, 3, 4) if layout is Layout.NHD else (0, 2, 3, 1, 4)
    assert pages.shape == SHAPE and pages.permute(order).is_contiguous()
    assert pages.stride(0) == pages[0].numel()
    at = strides(pages)
    flat = pages.as_strided((pages.numel(),), (1,))
    where = 3 * at.page + 2 * at.token + at.value + at.head
    assert torch.equal(flat[where : where + 8], pages[3, 2, 1, 1])


@pytest.mark.row("F12.10")
@pytest.mark.parametrize("shape", [SHAPE, (3, 1, 2, 1, 4), (3, 16, 1, 1, 14), (2, 4, 2, 0, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_to_the_other_order_and_back_is_the_same_memory(shape: Any, dtype: torch.dtype) -> None:
    first, other, back = (
        layout.zeros(shape, dtype=dtype, device=CPU)
        for layout in (Layout.NHD, Layout.HND, Layout.NHD)
    )
    first.copy_(torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(1)))
    back.copy_(other.copy_(first))
    assert torch.equal(first, other) and torch.equal(back, first)
    memory = other.as_strided((other.numel(),), (1,))
    assert torch.equal(memory, first.permute(0, 2, 3, 1, 4).flatten())
    assert torch.equal(back.flatten(), first.flatten())


@each_layout
@pytest.mark.parametrize("codes", [None, *CODES.values()], ids=str)
def test_tokens_go_to_their_slots_and_come_back(layout: Layout, codes: KVCodes | None) -> None:
    x = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(2))
    shape = (5, 4, 2, 3, row_width(8, codes))
    pages = layout.zeros(shape, dtype=torch.uint8 if codes else torch.float32, device=CPU)
    slots = torch.tensor([18, 0, 7])
    put(x, slots, pages, codes)
    found = gather(pages, torch.arange(5))
    assert torch.equal(found[slots].flatten(1, 2), x if codes is None else codes.encode(x))
    assert not found[[s for s in range(20) if s not in (18, 0, 7)]].any()


@each_layout
def test_latents_have_one_plane_and_one_head(layout: Layout) -> None:
    pages = layout.zeros((3, 4, 1, 1, 6), dtype=torch.float32, device=CPU)
    scatter(torch.arange(12.0).view(2, 1, 1, 6), torch.tensor([5, 10]), pages)
    assert pages[1, 1].flatten().tolist() == list(range(6)) and pages[2, 2, 0, 0, 5] == 11


@each_layout
def test_whole_pages_are_gathered_token_after_token(layout: Layout) -> None:
    pages = random(layout)
    found = gather(pages, torch.tensor([4, 1]))
    assert found.shape == (8, 2, 3, 8)
    assert torch.equal(found, torch.cat((pages[4], pages[1])))
