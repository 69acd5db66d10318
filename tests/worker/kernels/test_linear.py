"""Linear kernels against their plain twin, and which of them is chosen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from baton.errors import ModelError
from baton_worker.kernels import linear
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.linear import (
    LINEAR_KERNELS,
    LinearSpec,
    OneDnnLinear,
    PlainLinear,
    TritonLinear,
    choose,
    has_kernel,
    has_wide_sums,
)
from tests.support.worker.random_products import some_blocks

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def packable(dtype: torch.dtype) -> None:
    reason = OneDnnLinear.refuses(torch.zeros(4, 4, dtype=dtype))
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
        packed = OneDnnLinear(weight, offset)(x, stream)
        plain = PlainLinear(weight, offset)(x, stream)
    torch.testing.assert_close(packed, plain, rtol=0, atol=TOLERANCES[dtype])


def test_residual_is_not_overwritten() -> None:
    packable(torch.float32)
    stream = torch.ones(2, 4)
    with torch.inference_mode():
        OneDnnLinear(torch.eye(4), None)(torch.ones(2, 4), stream)
    assert (stream == 1).all()


def test_strided_input_is_accepted() -> None:
    packable(torch.float32)
    wide, weight = torch.randn(5, 16), torch.randn(3, 8)
    with torch.inference_mode():
        packed = OneDnnLinear(weight, None)(wide[:, 4:12])
    torch.testing.assert_close(packed, wide[:, 4:12] @ weight.T)


def test_every_kernel_has_sums_and_takes_or_leaves_factors() -> None:
    """Layers ask any kernel for both, where adapters are served."""
    for name in LINEAR_KERNELS.names():
        backend = LINEAR_KERNELS.load(name)
        assert all(hasattr(backend, method) for method in ("sums", "put_factors")), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8])
def test_other_dtypes_are_refused_with_a_reason(dtype: torch.dtype) -> None:
    assert "oneDNN" in str(OneDnnLinear.refuses(torch.zeros(2, 2, dtype=dtype)))


def test_stored_weights_are_for_a_gpu() -> None:
    codes, ones = torch.zeros(8, 32, dtype=torch.uint8), torch.ones(1, 8)
    weight = GptqWeight.of(codes, 4, ones, ones.to(torch.int16))
    assert TritonLinear.refuses(weight, torch.zeros(1)) == "it needs a GPU"


def test_the_first_kernel_that_refuses_no_weight_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, blocks = torch.randn(40, 64), some_blocks("int8", 40, 64)
    monkeypatch.setattr(CpuLinear, "refuses", lambda *_: "of this test")
    monkeypatch.setattr(OneDnnLinear, "refuses", lambda *_: "of this test too")
    kernel = choose(LinearSpec((weight,), None, weight, gate="silu"))
    assert isinstance(kernel, PlainLinear) and not kernel.nbytes and not kernel.applies_gate
    assert has_kernel(weight, weight) and not has_kernel(blocks, weight)
    with pytest.raises(
        ModelError, match=r"cpu refused: of this test; scaled_mm .* plain refused: it"
    ):
        choose(LinearSpec((blocks,), None, weight))


@pytest.mark.skipif(CpuLinear.refuses(torch.zeros(1, 1)) is not None, reason="no C++ compiler here")
def test_a_gate_is_left_to_the_caller_where_parts_are_of_two_kinds() -> None:
    like = torch.zeros(0)
    one, other = some_blocks("int8", 40, 64), some_blocks("int4", 40, 64)
    same = choose(LinearSpec((one, one), None, like, gate="silu"))
    mixed = choose(LinearSpec((one, other), None, like, gate="silu"))
    x = torch.randn(3, 64)
    assert same.applies_gate and same(x).shape == (3, 40)
    assert not mixed.applies_gate and mixed(x).shape == (3, 80)
    assert all(0 < kernel.nbytes < 80 * 64 * 2 for kernel in (same, mixed))


def test_products_in_blocks_of_rows_are_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every one that a library sees has the same number of rows."""
    weight, bias = torch.randn(24, 16), torch.randn(24)
    seen, plain = set[int](), F.linear

    def watched(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        seen.add(len(x))
        return plain(x, *others)

    blocked = PlainLinear.build(LinearSpec([weight], bias, weight, row_block=8))
    for rows in (0, 1, 8, 9, 21):
        x, residual = torch.randn(rows, 16), torch.randn(rows, 24)
        expected = plain(x, weight, bias)
        with monkeypatch.context() as patch:
            patch.setattr(F, "linear", watched)
            found, added = blocked(x), blocked(x, residual)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(added, residual + expected)
    assert seen == {8, 0}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_a_head_on_a_gpu_are_not_rounded(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Logits are float32 sums, also in blocks of rows: torch checks the call as one of a GPU."""
    rows, plain = list[int](), torch.mm

    def on_gpu(x: torch.Tensor, weight: torch.Tensor, *, out_dtype: torch.dtype) -> torch.Tensor:
        rows.append(len(x))
        with FakeTensorMode():
            given = (
                torch.empty_strided(y.shape, y.stride(), dtype=y.dtype, device="cuda")
                for y in (x, weight)
            )
            assert plain(*given, out_dtype=out_dtype).dtype is torch.float32
        return x.float() @ weight.float()

    monkeypatch.setattr(linear, "has_wide_sums", lambda device, dtype: True)
    monkeypatch.setattr(torch, "mm", on_gpu)
    x, weight, bias = torch.randn(5, 64).to(dtype), torch.randn(300, 64).to(dtype), torch.ones(300)
    exact = x.double() @ weight.double().T + 1
    for block in (0, 4):
        spec = LinearSpec([weight], bias.to(dtype), x, torch.float32, row_block=block)
        found = PlainLinear.build(spec)(x)
        assert found.dtype is torch.float32 and (found - exact).abs().max() < 1e-4
    assert rows == [5, 4, 4]
    # Layers that ask for nothing keep the dtype of their inputs.
    assert PlainLinear.build(LinearSpec([weight], None, x))(x).dtype is dtype and len(rows) == 3


def test_which_devices_have_sums_that_are_not_rounded() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    assert [has_wide_sums(gpu, kind) for kind in kinds] == [torch.version.hip is None] * 2 + [False]
    assert not any(has_wide_sums(cpu, kind) for kind in kinds)
