"""Tokens go to their slots, as numbers or as codes."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.kv_codes import CODES, KVCodes, row_width
from baton_worker.kernels.kv_pages import gather, parts, put, scatter
from baton_worker.kernels.page_layout import EVERY


@pytest.mark.parametrize(
    "codes",
    [
        pytest.param(CODES["fp8"], id="fp8", marks=pytest.mark.row("F12.05")),
        pytest.param(CODES["int8"], id="int8", marks=pytest.mark.row("F12.06")),
    ],
)
def test_rows_go_to_their_slots(codes: KVCodes) -> None:
    x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    pages = torch.zeros(2, 4, 2, 2, row_width(8, codes), dtype=torch.uint8)
    put(x, torch.tensor([6, 0, 3]), pages, codes)
    flat = pages.view(8, 4, -1)
    assert torch.equal(flat[[6, 0, 3]], codes.encode(x))
    assert not flat[[1, 2, 4, 5, 7]].any()


def test_a_narrower_value_lies_behind_its_key() -> None:
    x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    pages = torch.zeros(2, 4, 1, 2, 8 + 5)
    put(x, torch.tensor([6, 0, 3]), pages, None, value_dim=5)
    tokens = gather(pages, torch.tensor([1, 0]))
    key, value = parts(tokens[[2, 4, 7]], 8, None, torch.float32, latent=False)
    assert torch.equal(key, x[:, :2]) and torch.equal(value, x[:, 2:, :5])


def test_rows_of_any_strides_go_to_parts_of_pages() -> None:
    for layout in EVERY:
        for dtype in (torch.bfloat16, torch.float32, torch.uint8):
            memory = layout.zeros((40, 16, 2, 3, 24), dtype=dtype, device=torch.device("cpu"))
            pages, slots = memory[..., 4:20], torch.randperm(640)[:500]
            rows = torch.randint(0, 255, (500, 3, 2, 16)).to(dtype).transpose(1, 2)
            expected = memory.clone()
            expected[slots // 16, slots % 16, :, :, 4:20] = rows
            scatter(rows, slots, pages)
            assert torch.equal(memory, expected)
