"""Products with codes of GPTQ against floats, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest
import torch

from baton_worker.kernels.gptq import BITS, GptqWeight, unpack
from tests.support import quantized_checkpoints


@pytest.fixture(scope="module")
def kernel(interpreted: None) -> ModuleType:
    return import_module("baton_worker.kernels.triton.gptq")


def weight(bits: int, shape: tuple[int, int, int], order: bool, even: bool) -> GptqWeight:
    """As AutoGPTQ stores it; `shape` is N, K and the size of a group."""
    columns, depth, group = shape
    values = torch.randn(columns, depth, generator=torch.Generator().manual_seed(bits))
    method = quantized_checkpoints.gptq(bits, group, act_order=order, symmetric=even)
    stored, _ = method(values)
    zeros = unpack(stored["qzeros"].view(torch.uint8), bits).to(torch.int16) + 1
    return GptqWeight(bits, stored["qweight"], stored["scales"], zeros, stored["g_idx"])


@pytest.mark.row("F21.07")
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    ("shape", "order", "even"),
    [
        ((64, 64, 64), False, True),
        ((32, 96, 32), True, False),
        ((96, 160, 32), False, False),
    ],
)
def test_floats_are_those_of_the_twin_bit_for_bit(
    kernel: ModuleType,
    device: torch.device,
    bits: int,
    shape: tuple[int, int, int],
    order: bool,
    even: bool,
) -> None:
    stored = weight(bits, shape, order, even).to(device)
    assert torch.equal(kernel.dequantise(stored), stored.dequantise())
    assert torch.equal(kernel.dequantise(stored, torch.half), stored.dequantise().half())


@pytest.mark.row("F21.07")
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", [0, 1, 19])
def test_products_are_those_with_the_floats(
    kernel: ModuleType, device: torch.device, bits: int, dtype: torch.dtype, rows: int
) -> None:
    stored = weight(bits, (96, 160, 32), True, False).to(device)
    x = torch.randn(rows, 160, dtype=dtype, device=device)
    expected = x.double() @ stored.dequantise().to(dtype).double().T
    found = kernel.product(x, stored)
    assert found.dtype is dtype and found.shape == (rows, 96)
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2  # Half a step of 16, for sums near 30.
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.row("F21.07")
def test_a_weight_is_unpacked_once_for_many_rows(
    kernel: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baton_worker.kernels.linear import TritonLinear

    stored = weight(4, (96, 160, 32), True, False).to(device)
    x, unpacked = torch.randn(9, 160, device=device), list[int]()
    expected, dequantise = kernel.product(x, stored), kernel.dequantise
    monkeypatch.setattr(kernel, "UNPACKED", 6)
    monkeypatch.setattr(kernel, "dequantise", lambda *a: (unpacked.append(1), dequantise(*a))[1])
    torch.testing.assert_close(kernel.product(x, stored), expected, rtol=1e-4, atol=1e-4)
    assert len(unpacked) == 1
    # With constant blocks of rows there is one way to multiply.
    blocked = TritonLinear([stored], None, device, row_block=4)
    monkeypatch.setattr(blocked, "_parts", [(kernel.product, stored)])
    assert torch.equal(blocked(x), expected) and len(unpacked) == 1


@pytest.mark.row("F03.10")
def test_a_weight_of_awq_is_one_of_these(kernel: ModuleType, device: torch.device) -> None:
    from baton_worker.quantization import awq

    parts, meant = quantized_checkpoints.awq()(torch.randn(64, 96))
    stored = awq.read(parts).to(device)
    assert torch.equal(kernel.dequantise(stored), meant.to(device))
    x = torch.randn(5, 96, device=device)
    torch.testing.assert_close(
        kernel.product(x, stored), x @ meant.to(device).T, rtol=1e-4, atol=1e-4
    )


def test_a_row_gets_the_same_bits_beside_any_others(
    kernel: ModuleType, device: torch.device
) -> None:
    stored = weight(4, (64, 64, 64), False, False).to(device)
    x = torch.randn(20, 64, device=device)
    together = kernel.product(x, stored)
    for row in range(20):
        one = slice(row, row + 1)
        assert torch.equal(kernel.product(x[one], stored), together[one])
