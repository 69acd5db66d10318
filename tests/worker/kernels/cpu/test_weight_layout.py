"""The layout of packed weights, checked against a plain description of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.cpu.weight_layout import arranged, pack, panels
from baton_worker.kernels.quantized_weights import Rounding, quantise
from tests.support.worker.random_products import some_blocks

WIDTH = 8


@pytest.mark.parametrize(("dtype", "chunk"), [(torch.float32, 1), (torch.bfloat16, 2)])
@pytest.mark.parametrize(("rows", "depth"), [(32, 6), (5, 7)])
def test_each_weight_is_where_the_product_reads_it(
    dtype: torch.dtype, chunk: int, rows: int, depth: int
) -> None:
    weight = torch.arange(1, rows * depth + 1).view(rows, depth).to(dtype)
    packed, columns = panels(weight, WIDTH, False), 2 * WIDTH
    assert packed.shape == (-(-rows // columns), -(-depth // chunk), columns, chunk)
    for row in range(rows):
        for k in range(depth):
            at = packed[row // columns, k // chunk, row % columns, k % chunk]
            assert at == weight[row, k]
    assert (packed != 0).sum() == rows * depth


def test_gate_and_up_take_turns_in_vectors() -> None:
    rows = torch.arange(4 * WIDTH, dtype=torch.float32)[:, None]
    first, second = 0, 2 * WIDTH
    expected: list[int] = []
    for part in range(2):
        for start in (first, second):
            expected += range(start + part * WIDTH, start + (part + 1) * WIDTH)
    assert arranged(rows, WIDTH, True).flatten().tolist() == expected


def test_packed_blocks_hold_what_the_blocks_hold() -> None:
    for kind in KINDS:
        blocks = some_blocks(kind, 2 * WIDTH + 1, 2 * KINDS[kind].multiple)
        packed = panels(blocks, WIDTH, False)
        assert packed.dtype is torch.uint8 and packed.shape[0] == 2 and packed.is_contiguous()
        expected = sum(_bytes(part, name, kind) for name, part in blocks.parts())
        assert packed.nbytes == expected, kind


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4_minimum"])
@pytest.mark.parametrize("size", [1, 20_000, 1 << 20])
def test_packing_a_few_panels_at_a_time_gives_the_same(kind: str, gated: bool, size: int) -> None:
    weight = torch.randn(2 * (5 * WIDTH + 3), 64)
    given = quantise(weight, kind) if kind in KINDS else weight.to(getattr(torch, kind))
    packed = pack(given, WIDTH, gated, lambda s, d: torch.empty(*s, dtype=d), size)
    assert torch.equal(packed, panels(given, WIDTH, gated))
    if kind in KINDS:
        rounding = Rounding(weight, kind)
        packed = pack(rounding, WIDTH, gated, lambda s, d: torch.empty(*s, dtype=d), size)
        assert torch.equal(packed, panels(given, WIDTH, gated))


def _bytes(part: Tensor, name: str, kind: str) -> int:
    """Bytes of a part whose rows are filled up to two panels; codes share them."""
    padded = part.nbytes // part.shape[0] * 4 * WIDTH
    return padded * KINDS[kind].bits // 8 if name == "codes" else padded
