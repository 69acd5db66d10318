"""Activations in C++ against torch."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.activation import activation_kernel, gate_kernel

TWINS = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "softplus": F.softplus,
}
GATES = {
    None: lambda x: x,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
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
    for (name, twin), (dtype, tolerance) in product(GATES.items(), TOLERANCES.items()):
        gated = gate_kernel(name, lambda x, gate: pytest.fail("not in C++"))
        generator = torch.Generator().manual_seed(0)
        for rows, each, width in ((0, 1, 8), (1, 1, 1), (7, 5, 6), (300, 1, 257)):
            # Parts of wider rows.
            gate = torch.randn(rows, width + 3, generator=generator).to(dtype)[:, 2 : 2 + width]
            for x_dtype in {dtype, torch.float32}:
                x = torch.randn(rows, width * each, generator=generator).to(x_dtype)
                ours, shared = gated(x, gate), gate.double().repeat_interleave(each, 1)
                expected = x.double() * twin(shared)
                assert ours.dtype is dtype
                torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=1e-6)


def test_other_dtypes_are_the_twins() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(activation_kernel("gelu_tanh", torch.neg)(x), -x)
