"""Norms against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}
pytestmark = pytest.mark.row("F21.01")


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", [1, 96, 576, 1000])
@pytest.mark.parametrize("scaled", [True, False])
def test_equals_the_twin(dtype: torch.dtype, size: int, scaled: bool, device: torch.device) -> None:
    from baton_worker.kernels.triton.norm import rms_norm

    generator = torch.Generator().manual_seed(size)
    wide = torch.randn(5, 3, size + 2, generator=generator).to(device, dtype)
    weight = torch.rand(size, generator=generator).to(device) + 0.5 if scaled else None
    for x in (wide[..., :size], wide[:, 0, :size], wide[:0, 0, :size]):
        found = rms_norm(x, weight, 1e-5)
        expected = F.rms_norm(x.float(), (size,), weight, 1e-5)
        assert found.dtype is dtype and found.shape == x.shape
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_sum_before_it_is_in_the_same_pass(dtype: torch.dtype, device: torch.device) -> None:
    from baton_worker.kernels.triton.norm import norm

    generator = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(7, 96, generator=generator).to(device, dtype) for _ in range(2))
    weight = torch.rand(96, generator=generator).to(device)
    found, total = norm(x, residual, weight, None, 1e-5)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(total, x + residual, rtol=tolerance, atol=tolerance)
    expected = F.rms_norm(total.float(), (96,), weight, 1e-5)
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_layer_norms_are_those_of_torch(dtype: torch.dtype, device: torch.device) -> None:
    from baton_worker.kernels.triton.norm import norm

    generator = torch.Generator().manual_seed(2)
    x, residual = (torch.randn(5, 96, generator=generator).to(device, dtype) for _ in range(2))
    weight, bias = (torch.rand(96, generator=generator).to(device) for _ in range(2))
    found, total = norm(x + 3, residual, weight, bias, 1e-5, centered=True)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(total, x + 3 + residual, rtol=tolerance, atol=tolerance)
    expected = F.layer_norm(total.float(), (96,), weight, bias, 1e-5)
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)
