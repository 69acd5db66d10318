"""Products of integers, against sums in 64 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton_worker.kernels.cpu.int8_linear import Int8Linear, Int8Weight, quantise
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import LinearSpec, choose
from tests.support.worker.quantized_weights import K, N, int8, some

needs_kernels = pytest.mark.skipif(
    CpuLinear.refuses(torch.zeros(1, 1)) is not None, reason="no C++ compiler here"
)


def reference(x: Tensor, weight: Int8Weight) -> Tensor:
    """float64 [T, N], as w8a8 is published: whole numbers are summed, then scaled."""
    scales = x.double().abs().amax(-1, keepdim=True) / 127
    if weight.input_scale is not None:
        scales = torch.full_like(scales, weight.input_scale)
    codes = (x.double() / scales).round().clamp(-128, 127).long()
    sums = codes @ (weight.stored.codes().long() - 128).T
    return sums.double() * scales * weight.stored.scales[0].double()


@needs_kernels
@pytest.mark.row("F23.04")
def test_sums_are_those_of_whole_numbers() -> None:
    dynamic, static = int8(), replace(int8(), input_scale=0.02)
    x, bias, residual = some(6, K), some(3 * N, seed=2), some(6, 3 * N, seed=1)
    x[3] = 0
    for dtype in (torch.float32, torch.bfloat16):
        given = x.to(dtype)
        parts = [dynamic, dynamic[:], static]
        spec = LinearSpec(parts, bias, given, out_dtype=torch.float32)
        kernel = choose(spec)
        assert isinstance(kernel, Int8Linear) and not kernel.applies_gate
        assert kernel.nbytes < 1.5 * 3 * N * K, "24 rows may be padded to 32"
        expected = torch.cat([reference(given, part) for part in parts], -1) + bias.double()
        assert torch.allclose(kernel(given).double(), expected, rtol=1e-6, atol=1e-5)
        added = kernel(given, residual.to(dtype)).double() - residual.to(dtype).double()
        assert torch.allclose(added, expected, rtol=1e-5, atol=1e-4)
        for row in range(len(x)):
            assert torch.equal(kernel(given[row : row + 1])[0], kernel(given)[row])
    narrow = choose(replace(spec, out_dtype=None))
    assert narrow(given).dtype is torch.bfloat16


@needs_kernels
def test_it_differs_from_a_product_that_leaves_inputs_as_they_are() -> None:
    weight, x = int8(), some(4, K)
    rounded = choose(LinearSpec([weight], None, x))(x)
    exact = x @ weight.dequantise().T
    error = float((rounded - exact).norm() / exact.norm())
    assert 1e-4 < error < 0.02
    codes, scales = quantise(x, None)
    assert torch.equal(codes, codes.round()) and float(codes.abs().max()) == 127
    assert torch.allclose(codes * scales, x, atol=float(scales.max()) / 2)
