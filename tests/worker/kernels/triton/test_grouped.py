"""Products with packed weights against float64, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import Tensor

from baton_worker.kernels.fp8 import Fp8Weight, Inputs, dequantise
from baton_worker.kernels.packed_weights import pack
from baton_worker.kernels.triton import has_room
from baton_worker.kernels.weight import QuantizedWeight
from tests.support.worker import packable_weights

NEAR = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Half a step of the result."""


@pytest.fixture(scope="module")
def grouped(interpreted: None) -> ModuleType:
    return import_module("baton_worker.kernels.triton.grouped")


def inputs_of(weight: QuantizedWeight) -> Inputs | None:
    return weight.inputs if isinstance(weight, Fp8Weight) else None


def wanted(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """In float64, of inputs that are rounded as the weight says."""
    wide, inputs = x.double(), inputs_of(weight)
    if inputs is not None:
        codes, scales = inputs.quantise(x)
        wide = dequantise(codes, scales, (1, inputs.group or x.shape[1])).double()
    return wide @ weight.dequantise().double().T


@pytest.mark.row("F21.07", "F21.06", "F03.02")
def test_products_are_those_of_the_numbers(grouped: ModuleType, device: torch.device) -> None:
    # One tile and part of a second, also of columns; formats take turns with dtypes.
    dtypes = list(NEAR)
    for i, (name, given) in enumerate(packable_weights.each(80, 160).items()):
        weight = given.to(device)
        packed, inputs = pack([weight], device), inputs_of(given)
        for rows, dtype in ((0, dtypes[0]), ((1, 19)[i % 2], dtypes[i % 3])):
            x = torch.randn(rows, 160, device=device).to(dtype)
            bias = torch.randn(1, 80, device=device).to(dtype)
            found = grouped.product(x, packed, bias, inputs=inputs)
            expected = wanted(x, weight) + bias.double()
            assert found.dtype is dtype and found.shape == (rows, 80)
            far = float((found.double() - expected).norm() / expected.norm()) if rows else 0.0
            assert far < NEAR[dtype], (name, rows, dtype, far)


def test_wide_tiles_give_the_same(
    grouped: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_room(device):
        pytest.skip("this GPU has no room for them")
    tables = grouped.product_tiles
    monkeypatch.setattr(tables, "_WIDE_FROM", 130)
    for given in (packable_weights.gptq(4, 144, 160, 32), packable_weights.mxfp4(144, 160)):
        weight = given.to(device)
        packed, x = pack([weight], device), torch.randn(131, 160, device=device).half()
        assert [tables.of_rows(count, x, packed=True).rows for count in (131, 129)] == [128, 64]
        assert tables.of_rows(131, x.float(), packed=True).rows == 64
        few, expected = grouped.product(x[:129], packed), wanted(x, weight)
        for tile in (None, *tables.PACKED[64], *tables.PACKED[128]):
            found = grouped.product(x, packed, tile=tile)
            far = float((found.double() - expected).norm() / expected.norm())
            assert far < NEAR[torch.float16], tile
            torch.testing.assert_close(found[:129], few, rtol=1e-2, atol=1e-2)


@pytest.mark.row("F21.07")
def test_floats_are_those_of_the_twin_bit_for_bit(
    grouped: ModuleType, device: torch.device
) -> None:
    for name, given in packable_weights.each(32, 160).items():
        packed = pack([given.to(device)], device)
        floats = given.dequantise().T
        floats = floats if packed.order is None else floats[packed.order.cpu()]
        assert torch.equal(
            grouped.dequantise(packed, torch.empty(160, 32, device=device)).cpu(), floats
        )
        some = grouped.dequantise(packed, torch.empty(160, 20, device=device), 12).cpu()
        assert torch.equal(some, floats[:, 12:]), name


@pytest.mark.row("F21.07")
def test_a_row_that_is_cut_gets_the_same_bits_beside_others_of_its_tile(
    grouped: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped, "multiprocessors", lambda device: 4)
    weight = packable_weights.gptq(4, 24, 544, 32).to(device)
    packed, plain, cut = pack([weight], device), grouped._added, list[int]()

    def added(parts: Tensor, *others: Tensor) -> Tensor:
        cut.append(len(parts))
        found: Tensor = plain(parts, *others)
        return found

    monkeypatch.setattr(grouped, "_added", added)
    for dtype in (torch.float32, torch.float16):
        x = torch.randn(19, 544, device=device).to(dtype)
        bias = torch.randn(1, 24, device=device).to(dtype)
        for last, some in ((16, slice(0, 3)), (19, slice(1, 18))):
            together = grouped.product(x[:last], packed, bias)
            assert torch.equal(grouped.product(x[some], packed, bias), together[some])
            expected = wanted(x[:last], weight) + bias.double()
            far = float((together.double() - expected).norm() / expected.norm())
            assert far < NEAR[dtype]
    assert cut == [2] * 8


def test_few_rows_are_cut_until_they_fill_the_device(
    grouped: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares are of two tiles and more, and of a whole weight where columns are enough."""
    monkeypatch.setattr(grouped, "multiprocessors", lambda device: 132)
    share = grouped._share
    cpu = torch.device("cpu")
    assert [share(columns, 32, cpu) for columns in (64, 1024, 4096, 28672)] == [2, 2, 8, 32]
    assert share(64, 1, cpu) == 1
