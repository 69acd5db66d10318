"""Tables of pointers to the factors of each adapter."""

from __future__ import annotations

import ctypes

import torch

from baton_worker.kernels.cpu.output_factors import OutputFactors


def test_table_holds_pointers_of_adapters_that_have_factors() -> None:
    table, factors = OutputFactors(), torch.rand(8)
    assert table.address is None
    table.put(0, None)
    assert table.address is None
    table.put(2, factors)
    assert table.address is not None
    read = (ctypes.c_int64 * 3).from_address(table.address)
    assert list(read) == [0, 0, factors.data_ptr()]
    table.put(2, None)
    assert table.address is None
