"""Products with rotated weights."""

from __future__ import annotations

import pytest
import torch

from baton.errors import ModelError
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import LinearSpec, choose, has_kernel
from baton_worker.kernels.rotated_linear import RotatedLinear, RotatedWeight
from tests.support.worker.quantized_weights import K, N, mxfp4, some

needs_kernels = pytest.mark.skipif(
    CpuLinear.refuses(torch.zeros(1, 1)) is not None, reason="no C++ compiler here"
)


def rotated() -> RotatedWeight:
    return RotatedWeight(mxfp4(), torch.linalg.qr(some(64, 64)).Q, 0.25)


@needs_kernels
def test_product_gate_residual_and_rows() -> None:
    weight, x = rotated(), some(5, K)
    plain = x @ weight.dequantise().T
    for dtype, least in ((torch.float32, 1e-3), (torch.bfloat16, 0.05)):
        like, given = torch.empty(0, dtype=dtype), x.to(dtype)
        assert has_kernel(weight, like) and not has_kernel(weight, torch.empty(0).half())
        kernel = choose(LinearSpec([weight], None, like))
        assert isinstance(kernel, RotatedLinear) and not kernel.applies_gate
        size = float(plain.std())
        assert float((kernel(given).float() - plain).abs().max()) < least * size
        added = kernel(given, given[:, :N]).float()
        assert float((added - plain - x[:, :N]).abs().max()) < least * max(size, 1)
        # A row's bits do not depend on the other rows.
        assert all(
            torch.equal(kernel(given)[row], kernel(given[row : row + 1])[0]) for row in (0, 4)
        )
    gated = choose(LinearSpec([weight[:12], weight[12:]], None, torch.empty(0), gate="silu"))
    assert gated.applies_gate and gated.nbytes < K * N * 4
    expected = torch.nn.functional.silu(plain[:, :12]) * plain[:, 12:]
    torch.testing.assert_close(gated(x), expected, rtol=1e-3, atol=1e-3)


@needs_kernels
def test_parts_with_two_rotations_are_refused() -> None:
    weight = rotated()
    other = RotatedWeight(weight.inner, weight.matrix.T.contiguous(), weight.factor)
    with pytest.raises(ModelError, match="rotated by different matrices"):
        choose(LinearSpec([weight, other], None, torch.empty(0)))
