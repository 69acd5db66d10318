"""Linear layers with packed weights: what they take, and how parts are put together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from baton_worker.kernels import packed_linear, unpacked_product
from baton_worker.kernels.linear import LINEAR_KERNELS, LinearSpec
from baton_worker.kernels.packed_linear import PackedLinear
from tests.fakes.triton_interpreter import interpreter
from tests.support.worker import packable_weights

pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be tested")
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    with interpreter():
        yield


@pytest.mark.row("F21.07", "F03.02")
def test_parts_of_one_format_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    from baton_worker.kernels.triton import grouped

    products, plain = list[int](), grouped.product

    def watched(*given: Any, **options: Any) -> torch.Tensor:
        products.append(len(given[0]))
        return plain(*given, **options)

    monkeypatch.setattr(grouped, "product", watched)
    four = packable_weights.gptq(4, 48, 96, 32)
    parts = [four, four[:16], packable_weights.mxfp4(32, 96)]
    weight, bias = torch.cat([part.dequantise() for part in parts]), torch.randn(96)
    x, residual = torch.randn(2, 5, 96), torch.randn(2, 5, 96)
    kernel = PackedLinear.build(LinearSpec(parts, bias, x))
    assert kernel.nbytes < 96 * 96
    wanted = residual + x @ weight.T + bias
    torch.testing.assert_close(kernel(x, residual), wanted, rtol=1e-4, atol=1e-4)
    assert products == [10, 10]
    # A constant number of rows in every product, and weights that are unpacked for many rows.
    constant = PackedLinear([four], None, x, row_block=4)
    torch.testing.assert_close(constant(x[0]), x[0] @ four.dequantise().T, rtol=1e-4, atol=1e-4)
    assert products[2:] == [4, 4]
    monkeypatch.setattr(unpacked_product, "UNMEASURED", 5)
    # A cache that holds the floats of 128 columns: three products, the last one of fewer.
    monkeypatch.setattr(unpacked_product, "_device", lambda device: (0, 3 * 4 * 96 * 100))
    ordered = packable_weights.gptq(4, 304, 96, 32, order=True)
    found = PackedLinear([ordered], None, x)(x[0])
    torch.testing.assert_close(found, x[0] @ ordered.dequantise().T, rtol=1e-4, atol=1e-4)
    assert len(products) == 4
    # What a head wants: sums that are not rounded to the dtype of inputs, whatever the rows.
    short = x[0].half()
    head = PackedLinear.build(LinearSpec([four], None, short, torch.float32))
    found, wanted = head(short), short.double() @ four.dequantise().double().T
    assert found.dtype is torch.float32 and len(products) == 5
    assert (found - wanted).norm() < 1e-4 * wanted.norm()


@pytest.mark.row("F21.07")
def test_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in LINEAR_KERNELS.names() if name in ("scaled_mm", "packed", "triton")]
    assert names == ["scaled_mm", "packed", "triton"]
    refuses, like = PackedLinear.refuses, torch.zeros(0)
    four, eight = packable_weights.mxfp4(32, 64), packable_weights.fp8(32, 64, (1, 64))
    assert "packed integers" in str(refuses(torch.ones(1, 1), like))
    assert refuses(four, like) == "it needs a GPU"
    monkeypatch.setattr(packed_linear, "runs", lambda device: True)
    assert refuses(four, like) is None and refuses(eight, like) is None
    assert "no product for torch.float64" in str(refuses(four, like.double()))
    assert "3 bits" in str(refuses(packable_weights.gptq(3, 32, 64, 32), like))
    monkeypatch.setattr(packed_linear, "has_float8", lambda device: True)
    assert "has products of 8-bit floats" in str(refuses(eight, like))
