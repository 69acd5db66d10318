"""Products of 8-bit floats by torch, whose arguments are checked as those of a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baton_worker.kernels import fp8, scaled_mm
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.linear import LINEAR_KERNELS, LinearSpec, LinearWeight
from baton_worker.kernels.scaled_mm import ScaledMmLinear
from tests.fakes.scaled_products import ScaledProducts


def weight(
    rows: int, depth: int, block: tuple[int, int] | None = None, inputs: Inputs | None = None
) -> Fp8Weight:
    generator = torch.Generator().manual_seed(rows)
    codes = torch.randn(rows, depth, generator=generator).to(torch.float8_e4m3fn)
    block = block or (rows, depth)
    counts = [-(-size // width) for size, width in zip((rows, depth), block, strict=True)]
    scales = torch.rand(*counts, generator=generator) + 0.5
    return Fp8Weight(codes, scales, block, inputs or Inputs())


class Like:
    """A tensor on a GPU, as far as refusals look."""

    device = torch.device("cuda", 0)

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        self.dtype = dtype


def refuses(given: LinearWeight, dtype: torch.dtype = torch.bfloat16) -> str | None:
    like: Any = Like(dtype)
    return ScaledMmLinear.refuses(given, like)


BY_TENSOR, BY_ROW = (None, Inputs()), ((1, 256), Inputs())
BY_BLOCK = ((128, 128), Inputs(128))
CASES: dict[str, list[tuple[tuple[int, int] | None, Inputs]]] = {
    "tensor": [BY_TENSOR],
    "row": [BY_ROW],
    "block": [BY_BLOCK],
    "parts of one product": [BY_TENSOR, BY_ROW, BY_TENSOR],
    "static": [(None, Inputs(scale=torch.tensor(0.02)))] * 2,
    "shared": [(None, Inputs(per_tensor=True, most=3.0))],
    "parts of two products": [(None, Inputs(scale=torch.tensor(0.02 * i))) for i in (1, 1, 2)],
}


@pytest.mark.row("F21.06", "F03.02")
def test_products_are_those_of_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    products = ScaledProducts(monkeypatch)
    for name, cases in CASES.items():
        parts = [weight(128 * (i + 1), 256, *case) for i, case in enumerate(cases)]
        bias = torch.randn(sum(part.shape[0] for part in parts))
        for dtype, near in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
            spec = LinearSpec(parts, bias.to(dtype), torch.empty(0, dtype=dtype))
            kernel = ScaledMmLinear.build(spec)
            assert kernel.nbytes >= sum(part.codes.nbytes for part in parts)
            for rows in (0, 1, 5):
                x, before = torch.randn(rows, 256).to(dtype), len(products.rows)
                found = kernel(x, torch.ones(rows, len(bias), dtype=dtype))
                wanted = torch.cat([fp8.product(x, part) for part in parts], -1) + bias + 1
                far = (found.double() - wanted.double()).norm()
                assert found.dtype is dtype and far <= near * wanted.norm(), name
                calls = 2 if name == "parts of two products" else 1
                assert len(products.rows) - before == (calls if rows else 0)


@pytest.mark.row("F21.06")
def test_constant_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    products = ScaledProducts(monkeypatch)
    part = weight(128, 256, *BY_BLOCK)
    kernel = ScaledMmLinear([part], None, torch.float32, row_block=8)
    x = torch.randn(2, 9, 256)
    wanted = fp8.product(x.flatten(0, 1), part).view(2, 9, 128)
    torch.testing.assert_close(kernel(x), wanted, rtol=1e-4, atol=1e-4)
    assert products.rows == [8, 8, 8]


@pytest.mark.row("F21.06", "F03.02")
def test_what_no_library_multiplies_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(scaled_mm, "_trial", lambda *given: None)
    wanted = [name for name in LINEAR_KERNELS.names() if name in ("scaled_mm", "triton")]
    assert wanted == ["scaled_mm", "triton"]
    assert ScaledMmLinear.refuses(weight(64, 64), torch.empty(0)) == "it needs a GPU"
    assert refuses(torch.ones(16, 16)) == "it multiplies with 8-bit floats"
    assert refuses(weight(64, 64)) is None and refuses(weight(64, 64), torch.half) is None
    assert refuses(weight(256, 256, *BY_BLOCK)) is None
    for rows, depth in ((64, 72), (72, 64)):
        assert "multiples of 16" in str(refuses(weight(rows, depth)))
    for block, group in (((64, 64), 64), ((128, 128), None), ((1, 256), 128)):
        assert "its blocks are not" in str(refuses(weight(256, 256, block, Inputs(group))))
    assert "not whole" in str(refuses(weight(192, 256, *BY_BLOCK)))
    capability = (10, 0)
    assert "compute capability 9 only" in str(refuses(weight(256, 256, *BY_BLOCK)))
    assert "no results of torch.float16" in str(refuses(weight(64, 64), torch.half))
    capability = (8, 9)
    assert refuses(weight(64, 64)) is None
    capability = (8, 0)
    scaled_mm._say_what_is_missing.cache_clear()
    for _ in range(2):
        assert "from compute capability 8.9 on" in str(refuses(weight(64, 64)))
    assert caplog.text.count("cuda:0 has no products of 8-bit floats") == 1


@pytest.mark.row("F21.06")
def test_a_library_is_tried_before_it_is_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trial, cpu = scaled_mm._trial.__wrapped__, torch.device("cpu")
    with monkeypatch.context() as patch:
        ScaledProducts(patch)
        for by_block in (False, True):
            assert trial(cpu, torch.bfloat16, by_block) is None
        monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, *_, out_dtype: a.float() @ b.float())
        assert trial(cpu, torch.float32, by_block=False) == "a trial product is wrong"

    def fails(*given: object, **options: object) -> None:
        raise NotImplementedError("requires cublasLt >= 12.9\nin this line too")

    monkeypatch.setattr(torch, "_scaled_mm", fails)
    expected = "a trial product failed (requires cublasLt >= 12.9)"
    assert trial(cpu, torch.bfloat16, by_block=False) == expected
    assert f"multiplied by Triton: {expected}" in caplog.text
