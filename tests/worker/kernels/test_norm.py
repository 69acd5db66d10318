"""Norms in C++ against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from baton_worker.kernels.cpu import library
from baton_worker.kernels.norm import CpuNorm

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _built() -> None:
    if library("norm") is None:
        pytest.skip("the kernels cannot be built here")


def twin(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, centered: bool
) -> torch.Tensor:
    size, x = x.shape[-1:], x.double()
    weight = None if weight is None else weight.double()
    bias = None if bias is None else bias.double()
    if centered:
        return F.layer_norm(x, size, weight, bias, 1e-5)
    return F.rms_norm(x, size, weight, 1e-5)


@pytest.mark.parametrize("size", [1, 15, 64, 576, 1000])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_equals_the_twin(size: int, dtype: torch.dtype, centered: bool, scaled: bool) -> None:
    generator = torch.Generator().manual_seed(size)
    x = (3 * torch.randn(7, size, generator=generator) + 1).to(dtype)
    weight = torch.randn(size, generator=generator).to(dtype) if scaled else None
    bias = torch.randn(size, generator=generator).to(dtype) if scaled and centered else None
    kernel = CpuNorm(weight, bias, size=size, eps=1e-5, dtype=dtype, centered=centered)
    ours, expected = kernel(x), twin(x, weight, bias, centered)
    assert ours.dtype is dtype and ours.shape == x.shape
    torch.testing.assert_close(
        ours.double(), expected, rtol=TOLERANCES[dtype] / 2, atol=TOLERANCES[dtype]
    )
    residual = torch.randn(7, size, generator=generator).to(dtype)
    assert torch.equal(kernel(x, residual), residual + ours)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_row_has_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    x = torch.randn(300, 576, generator=torch.Generator().manual_seed(0)).to(dtype)
    kernel = CpuNorm(None, None, size=576, eps=1e-5, dtype=dtype, centered=False)
    whole = kernel(x)
    assert all(torch.equal(kernel(x[i : i + 1])[0], whole[i]) for i in range(0, 300, 37))


def test_strided_and_deeper_inputs() -> None:
    x = torch.randn(5, 9, 32)[:, 2:6]
    kernel = CpuNorm(None, None, size=32, eps=1e-5, dtype=torch.float32, centered=False)
    torch.testing.assert_close(kernel(x), F.rms_norm(x, (32,), None, 1e-5))


def test_nan_stays_in_its_row() -> None:
    x = torch.randn(2, 32)
    x[0, 3] = float("nan")
    kernel = CpuNorm(None, None, size=32, eps=1e-5, dtype=torch.float32, centered=False)
    assert kernel(x)[0].isnan().all() and kernel(x)[1].isfinite().all()


def test_what_it_cannot_do_is_refused_with_a_reason() -> None:
    assert "float64" in str(CpuNorm.refuses(None, torch.float64, CPU))
    assert "not on the CPU" in str(CpuNorm.refuses(None, torch.float32, torch.device("cuda")))
    assert "row to row" in str(CpuNorm.refuses(torch.ones(2, 4), torch.float32, CPU))
    assert CpuNorm.refuses(torch.ones(4), torch.float32, CPU) is None
