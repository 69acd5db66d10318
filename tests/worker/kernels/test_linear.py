"""The packed linear kernel against its plain twin."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.linear import PackedLinear, PlainLinear, StoredLinear

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def packable(dtype: torch.dtype) -> None:
    reason = PackedLinear.refuses(torch.zeros(4, 4, dtype=dtype))
    if reason is not None:
        pytest.skip(f"weights cannot be packed here: {reason}")


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", [1, 2, 8, 33, 512])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_packed_equals_plain(dtype: torch.dtype, rows: int, bias: bool, residual: bool) -> None:
    packable(dtype)
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(96, 72, generator=generator).to(dtype) / 8
    offset = torch.randn(96, generator=generator).to(dtype) if bias else None
    x = torch.randn(rows, 72, generator=generator).to(dtype)
    stream = torch.randn(rows, 96, generator=generator).to(dtype) if residual else None
    with torch.inference_mode():
        packed = PackedLinear(weight, offset)(x, stream)
        plain = PlainLinear(weight, offset)(x, stream)
    torch.testing.assert_close(packed, plain, rtol=0, atol=TOLERANCES[dtype])


def test_residual_is_not_overwritten() -> None:
    packable(torch.float32)
    stream = torch.ones(2, 4)
    with torch.inference_mode():
        PackedLinear(torch.eye(4), None)(torch.ones(2, 4), stream)
    assert (stream == 1).all()


def test_strided_input_is_accepted() -> None:
    packable(torch.float32)
    wide, weight = torch.randn(5, 16), torch.randn(3, 8)
    with torch.inference_mode():
        packed = PackedLinear(weight, None)(wide[:, 4:12])
    torch.testing.assert_close(packed, wide[:, 4:12] @ weight.T)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8])
def test_other_dtypes_are_refused_with_a_reason(dtype: torch.dtype) -> None:
    assert "oneDNN" in str(PackedLinear.refuses(torch.zeros(2, 2, dtype=dtype)))


def test_stored_weights_are_for_a_gpu() -> None:
    codes, ones = torch.zeros(8, 32, dtype=torch.uint8), torch.ones(1, 8)
    weight = GptqWeight.of(codes, 4, ones, ones.to(torch.int16))
    assert StoredLinear.refuses(weight, torch.zeros(1)) == "it needs a GPU"
