"""Rounding inputs to 8-bit floats, and products of these."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.fp8 import MOST, Fp8Weight, Inputs, dequantise, product
from tests.support import quantized_checkpoints

BLOCK = (16, 16)


def some(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[-1]))


@pytest.mark.parametrize("shape", [(32, 48), (20, 17), (3, 50)])
def test_scales_are_of_blocks_even_cut_ones(shape: tuple[int, int]) -> None:
    weight = some(*shape)
    stored, meant = quantized_checkpoints.fp8(BLOCK)(weight)
    found = dequantise(stored["weight"], stored["weight_scale"], BLOCK)
    assert torch.equal(found, meant)
    torch.testing.assert_close(found, weight, atol=0.1, rtol=0.07)


@pytest.mark.row("F03.05")
@pytest.mark.parametrize(
    ("inputs", "block"),
    [
        (Inputs(), (1, 40)),
        (Inputs(16), (1, 16)),
        (Inputs(per_tensor=True), (5, 40)),
    ],
)
def test_the_largest_number_of_a_block_is_the_largest_code(
    inputs: Inputs, block: tuple[int, int]
) -> None:
    x = some(5, 40)
    codes, scales = inputs.quantise(x)
    assert codes.dtype is torch.float8_e4m3fn and scales.shape == (
        5,
        -(-40 // (inputs.group or 40)),
    )
    for row in range(5):
        for k in range(40):
            first, left = row // block[0] * block[0], k // block[1] * block[1]
            here = x[first : first + block[0], left : left + block[1]]
            scale = here.abs().max() / MOST
            assert scales[row, left // block[1]] == scale
            assert codes[row, k] == (x[row, k] / scale).to(torch.float8_e4m3fn)


@pytest.mark.row("F03.05")
def test_a_static_scale_cuts_off_what_is_too_large() -> None:
    x = torch.tensor([[1.0, -2.0, 1e6, -1e6, 0.0]])
    codes, scales = Inputs(scale=torch.tensor(0.5)).quantise(x)
    assert scales.tolist() == [[0.5]]
    assert codes.float().tolist() == [[2.0, -4.0, MOST, -MOST, 0.0]]


def test_an_upper_bound_holds_for_the_number_that_sets_the_scale() -> None:
    codes, scales = Inputs(most=MOST).quantise(torch.tensor([[2 * MOST, 8.0]]))
    assert scales.tolist() == [[1.0]] and codes.float().tolist() == [[MOST, 8.0]]


def test_zeros_and_nothing_have_scales_too() -> None:
    codes, scales = Inputs().quantise(torch.zeros(2, 4))
    assert not codes.float().any() and (scales > 0).all()
    for inputs in (Inputs(2), Inputs(per_tensor=True)):
        codes, scales = inputs.quantise(torch.zeros(0, 4))
        assert codes.shape == (0, 4) and len(scales) == 0


@pytest.mark.row("F21.06")
@pytest.mark.parametrize("inputs", [Inputs(), Inputs(16), Inputs(scale=torch.tensor(0.02))])
def test_a_product_is_that_of_rounded_numbers(inputs: Inputs) -> None:
    stored, meant = quantized_checkpoints.fp8(BLOCK)(some(24, 40))
    weight = Fp8Weight(stored["weight"], stored["weight_scale"], BLOCK, inputs)
    x = some(7, 40)
    codes, scales = inputs.quantise(x)
    wide = scales.repeat_interleave(inputs.group or 40, 1)[:, :40]
    found = product(x, weight)
    torch.testing.assert_close(found, (codes.float() * wide) @ meant.T)
    plain = x @ meant.T
    assert float((found - plain).norm() / plain.norm()) < 0.05
    assert weight.shape == (24, 40) and weight.nbytes == 24 * 40 + 4 * weight.scales.numel()


@pytest.mark.parametrize("block", [(24, 96), (1, 96), (5, 32), (16, 64)])
def test_blocks_are_the_same_numbers(block: tuple[int, int]) -> None:
    scales = some(-(-24 // block[0]), -(-96 // block[1])).abs()
    weight = Fp8Weight(some(24, 96).to(torch.float8_e4m3fn), scales, block, Inputs())
    blocks = weight.blocks()
    assert blocks is not None and blocks.kind == "fp8"
    assert torch.equal(blocks.dequantise(), weight.dequantise())
    assert torch.equal(blocks[7:20].dequantise(), weight.dequantise()[7:20])


@pytest.mark.parametrize(("columns", "width"), [(40, 40), (96, 48)])
def test_groups_that_would_lie_in_two_blocks_are_none(columns: int, width: int) -> None:
    scales = torch.ones(1, -(-columns // width))
    codes = torch.zeros(2, columns, dtype=torch.float8_e4m3fn)
    assert Fp8Weight(codes, scales, (2, width), Inputs()).blocks() is None


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_what_is_no_number_is_refused(code: int) -> None:
    codes = torch.zeros(4, 32, dtype=torch.uint8)
    codes[3, 5] = code
    weight = Fp8Weight(codes.view(torch.float8_e4m3fn), torch.ones(1, 1), (4, 32), Inputs())
    blocks = weight.blocks()
    assert blocks is not None and not blocks[:3].dequantise().any()
    with pytest.raises(ModelError, match="an 8-bit float in it is no number"):
        blocks.dequantise()
