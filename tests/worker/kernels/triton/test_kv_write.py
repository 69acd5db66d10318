"""Keys and values to their pages: the same bits as torch writes."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.kv_codes import CODES, KVCodes, row_width
from baton_worker.kernels.kv_pages import put
from baton_worker.kernels.page_layout import Layout

pytestmark = pytest.mark.row("F21.05")
HEADS, PAGES, SIZE = 4, 4, 3
CUDA = torch.device("cuda")


def pair(
    layout: Layout, codes: KVCodes | None, head_dim: int, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    shape = (PAGES, SIZE, 2, HEADS, row_width(head_dim, codes))
    kept = torch.uint8 if codes else dtype
    return [layout.zeros(shape, dtype=kept, device=device) for _ in range(2)]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("codes", [None, CODES["int8"], CODES["fp8"].on(CUDA)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [20, 64])
def test_the_same_bits(
    layout: Layout, codes: KVCodes | None, dtype: torch.dtype, head_dim: int, device: torch.device
) -> None:
    from baton_worker.kernels.triton import kv_write as fused

    wide = torch.randn(6, 3 + 2 * HEADS, head_dim, generator=torch.Generator().manual_seed(0))
    wide *= torch.logspace(-3, 3, 6)[:, None, None]
    if codes is not None:  # Rows that are broken, and one that holds nothing.
        wide[2, 5, 3], wide[3, -1, 0], wide[4, 4] = float("nan"), float("inf"), 0.0
    rows = wide.to(device, dtype)[:, 3:]
    slots = torch.tensor([11, 0, 5, 7, 2, 3], device=device)
    ours, twin = pair(layout, codes, head_dim, dtype, device)
    fused.put(rows, slots, ours, codes)
    # On a CPU, for on a GPU the twin is the kernel.
    written = twin.cpu()
    put(rows.cpu().contiguous(), slots.cpu(), written, codes)
    assert torch.equal(ours.cpu(), written) and ours.any()


@pytest.mark.parametrize("codes", CODES.values(), ids=str)
def test_given_scales_are_taken_and_what_is_too_large_is_cut_off(
    codes: KVCodes, device: torch.device
) -> None:
    from baton_worker.kernels.triton import kv_write as fused

    rows = torch.randn(5, 2 * HEADS, 16, generator=torch.Generator().manual_seed(0)).to(device)
    scales = torch.tensor([0.001, 0.5], device=device).repeat_interleave(HEADS)[:, None]
    ours, twin = pair(Layout.NHD, codes, 16, torch.float32, device)
    slots = torch.arange(5, device=device)
    fused.put(rows, slots, ours, codes, scales)
    written = twin.cpu()
    put(rows.cpu(), slots.cpu(), written, codes, scales.cpu())
    assert torch.equal(ours.cpu(), written)
