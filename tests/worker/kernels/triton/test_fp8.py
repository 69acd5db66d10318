"""Products of 8-bit floats against their twin, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest
import torch

from baton_worker.kernels.fp8 import Fp8Weight, Inputs, product
from tests.support import quantized_checkpoints

FEW = 16
"""Most rows of a tile of few rows."""
CASES = [
    ("tensor", None, Inputs()),
    ("tensor", None, Inputs(per_tensor=True)),
    ("tensor", None, Inputs(scale=torch.tensor(0.02))),
    ("row", (1, 160), Inputs()),
    ("row", (1, 160), Inputs(scale=torch.tensor(0.02))),
    ("block", (32, 32), Inputs(32)),
    ("block", (64, 64), Inputs(64)),
    ("block", (128, 128), Inputs(128)),
]


@pytest.fixture(scope="module")
def kernel(interpreted: None) -> ModuleType:
    return import_module("baton_worker.kernels.triton.fp8")


def weight(block: tuple[int, int] | None, inputs: Inputs, rows: int = 70) -> Fp8Weight:
    values = torch.randn(rows, 160, generator=torch.Generator().manual_seed(0))
    stored, _ = quantized_checkpoints.fp8(block)(values)
    scales = stored["weight_scale"].reshape(-(-rows // (block or (rows, 0))[0]), -1)
    return Fp8Weight(stored["weight"], scales, block or (rows, 160), inputs)


@pytest.mark.row("F03.02", "F21.06")
@pytest.mark.parametrize(("kind", "block", "inputs"), CASES)
@pytest.mark.parametrize("rows", [0, 1, 37])
def test_products_are_those_of_the_twin(
    kernel: ModuleType,
    device: torch.device,
    kind: str,
    block: tuple[int, int] | None,
    inputs: Inputs,
    rows: int,
) -> None:
    stored = weight(block, inputs).to(device)
    assert kernel.refuses(stored, device) is None
    x = torch.randn(rows, 160, device=device)
    found = kernel.product(x, stored)
    wanted = product(x, stored)
    # Tensor cores keep about 14 bits of the sums in a tile of many rows.
    few = rows <= FEW or device.type == "cpu"
    near = 1e-4 if few else 1e-3 * float(wanted.abs().max())
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=near)
    assert kernel.product(x.bfloat16(), stored).dtype is torch.bfloat16


@pytest.mark.row("F21.06")
def test_inputs_are_rounded_in_one_launch_as_the_twin_rounds_them(
    kernel: ModuleType, device: torch.device
) -> None:
    x = torch.randn(9, 160, device=device) * torch.logspace(-9, 9, 9, device=device)[:, None]
    x[2] = 0
    x[4, 7], x[5, 150] = torch.nan, torch.inf
    good = [0, 1, 2, 3, 6, 7, 8]
    kinds = (Inputs(), Inputs(32), Inputs(128), Inputs(most=3.0), Inputs(per_tensor=True))
    for inputs in (*kinds, Inputs(scale=torch.tensor(0.5, device=device))):
        # Of these, a token's scale is that of all.
        given = x[good] if inputs.per_tensor else x
        for dtype in (torch.float32, torch.bfloat16):
            codes, scales = kernel.quantise(given.to(dtype), inputs)
            wanted, wanted_scales = inputs.quantise(given.to(dtype))
            rows = [*range(len(good))] if inputs.per_tensor else good
            assert torch.equal(scales[rows], wanted_scales[rows])
            assert torch.equal(codes[rows].view(torch.uint8), wanted[rows].view(torch.uint8))
            if not inputs.per_tensor and inputs.most is None and inputs.scale is None:
                product = codes.float() * scales.repeat_interleave(inputs.group or 160, 1)[:, :160]
                assert product[4, 7].isnan() and not product[5, 150].isfinite()
        # In the layout of libraries, which codes and scales do not depend on.
        laid_out, in_columns = kernel.quantise(given, inputs, 4)
        twin, twin_columns = inputs.in_columns(given, 4)
        assert laid_out.shape == twin.shape and in_columns.stride() == twin_columns.stride()
        assert torch.equal(laid_out[rows].view(torch.uint8), twin[rows].view(torch.uint8))
        assert not laid_out[len(given) :].view(torch.uint8).any()
        for some in (rows, slice(len(given), None)):
            assert torch.equal(in_columns[some], twin_columns[some])
    nothing = kernel.quantise(x[:0], Inputs(32))
    assert nothing[0].shape == (0, 160) and nothing[1].shape == (0, 5)


def test_a_row_gets_the_same_bits_beside_any_others(
    kernel: ModuleType, device: torch.device
) -> None:
    stored = weight((32, 32), Inputs(32)).to(device)
    x = torch.randn(2 * FEW, 160, device=device)
    # Tiles of few rows and of many have tensor cores of their own, which round otherwise.
    least = 1 if device.type == "cpu" else FEW + 1
    for rows, fewest in ((FEW, 1), (2 * FEW, least)):
        together = kernel.product(x[:rows], stored)
        for first in range(rows - fewest + 1):
            some = slice(first, first + fewest)
            assert torch.equal(kernel.product(x[some], stored), together[some])


def test_blocks_that_no_tile_lies_in_are_refused(kernel: ModuleType, device: torch.device) -> None:
    assert "multiples of 32 channels" in kernel.refuses(weight((16, 16), Inputs(16)), device)
    old = torch.device("cuda")
    kernel_is_native = kernel._is_native
    try:
        kernel._is_native = lambda device: False
        assert "from compute capability 8.9 on" in kernel.refuses(weight(None, Inputs()), old)
    finally:
        kernel._is_native = kernel_is_native
