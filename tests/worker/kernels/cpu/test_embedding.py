"""Lookup of embedding rows in C++ against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.embedding import listed, look_up


@pytest.fixture(autouse=True)
def _built() -> None:
    if library("embedding") is None:
        pytest.skip("the kernels cannot be built here")


def test_has_the_bits_of_the_twin() -> None:
    numbers = torch.tensor([4, 0, 4, 6, 1])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        table = torch.randn(7, 33).to(dtype)
        for some in (numbers, numbers[::2], numbers[:0]):
            assert torch.equal(look_up(table, some), F.embedding(some, table))


def test_a_number_outside_of_the_table_gives_nan_in_its_row() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows = look_up(torch.ones(3, 5, dtype=dtype), torch.tensor([2, 3, -1, 0]))
        assert rows.isnan().all(1).tolist() == [False, True, True, False]


def test_numbers_outside_of_a_table_become_0() -> None:
    numbers = torch.tensor([4, 7, 0, -1, 2**40, 6])
    assert listed(numbers, 7).tolist() == [4, 0, 0, 0, 0, 6]
    assert torch.equal(listed(numbers[::2], 7), numbers[::2].where(numbers[::2] < 7, 0))
