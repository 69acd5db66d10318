"""Activations in C++ against torch."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.activation import activation_kernel

TWINS = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}
TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


@pytest.mark.skipif(library("activation") is None, reason="no C++ compiler here")
def test_equals_the_twin() -> None:
    for (name, twin), (dtype, tolerance) in product(TWINS.items(), TOLERANCES.items()):
        kernel = activation_kernel(name, lambda x: pytest.fail("not in C++"))
        for shape in ((0, 8), (1, 1), (7, 33), (300, 257)):
            x = (4 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
            ours = kernel(x)
            assert ours.dtype is dtype and ours.shape == x.shape
            expected = twin(x.double())
            torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)
        extreme = torch.tensor([-1e30, -100.0, 0.0, 100.0, 1e30], dtype=dtype)
        torch.testing.assert_close(kernel(extreme), twin(extreme.double()).to(dtype))
        assert kernel(torch.full((3,), torch.nan, dtype=dtype)).isnan().all()


def test_other_dtypes_are_the_twins() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(activation_kernel("gelu_tanh", torch.neg)(x), -x)
