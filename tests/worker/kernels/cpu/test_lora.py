"""The low-rank products in C++ against their twin, and the same bits for a token in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.lora import CpuLora
from baton_worker.kernels.lora import MAX_RANK, LoraPair, PlainLora, TokenAdapters
from tests.support.worker.random_products import some

pytestmark = [
    pytest.mark.skipif(library("lora") is None, reason="no C++ compiler here"),
    pytest.mark.row("F11.02"),
]
PARTS = (33, 16, 7)
MIXED = np.array([-1, 2, 2, 2, 0, -1, 1, 1, 2, 0, 0, 0, 0, 0, -1])


def pairs(
    dtype: torch.dtype, depth: int, ranks: tuple[int, ...], seed: int
) -> list[LoraPair | None]:
    return [
        None
        if rank == 0
        else LoraPair(
            some(rank, depth, dtype=dtype, seed=seed + part) / depth**0.5,
            some(rank, columns, dtype=dtype, seed=seed + part + 50),
            0.3 + part,
        )
        for part, (rank, columns) in enumerate(zip(ranks, PARTS, strict=True))
    ]


def kernels(
    dtype: torch.dtype, depth: int, out: torch.dtype
) -> tuple[TokenAdapters, CpuLora, PlainLora]:
    column = TokenAdapters(3, 64, torch.device("cpu"))
    ours, twin = CpuLora(depth, PARTS, column, dtype, out), PlainLora(PARTS, column)
    for slot, ranks in enumerate([(4, 0, 1), (0, 9, 17), (8, 8, MAX_RANK)]):
        for kernel in (ours, twin):
            kernel.put(slot, pairs(dtype, depth, ranks, seed=100 * slot))
    return column, ours, twin


@pytest.mark.parametrize("depth", [1, 40, 96])
def test_equals_its_twin_and_leaves_the_others_alone(depth: int) -> None:
    for dtype, out in (
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
    ):
        column, ours, twin = kernels(dtype, depth, out)
        x = some(len(MIXED), depth + 3, dtype=dtype, seed=1)[:, :depth]
        base = some(len(MIXED), sum(PARTS), dtype=out, seed=2)
        column.write(MIXED)
        added, wanted = ours.add(x, base.clone()), twin.add(x, base.clone())
        tolerance = 1e-4 if out is torch.float32 else 2e-2
        torch.testing.assert_close(added, wanted, rtol=tolerance, atol=tolerance)
        assert torch.equal(added[MIXED < 0], base[MIXED < 0])
        assert not torch.equal(added[MIXED >= 0], base[MIXED >= 0])
        rows = torch.from_numpy(np.flatnonzero(MIXED >= 0))
        torch.testing.assert_close(ours.delta(x)[rows], twin.delta(x)[rows], rtol=1e-4, atol=1e-4)


def test_bits_do_not_depend_on_neighbours_or_threads() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        column, ours, _ = kernels(dtype, 96, dtype)
        x, base = some(15, 96, dtype=dtype, seed=1), some(15, sum(PARTS), dtype=dtype, seed=2)
        column.write(np.tile(MIXED, 4))  # Enough for threads.
        before = torch.get_num_threads()
        torch.set_num_threads(3)
        together = ours.add(x.repeat(4, 1), base.repeat(4, 1))
        torch.set_num_threads(before)
        assert torch.equal(together[:15], together[45:])
        for row in range(len(MIXED)):
            column.write(MIXED[row : row + 1])
            assert torch.equal(
                ours.add(x[row : row + 1], base[row : row + 1].clone())[0], together[row]
            )


def test_a_slot_that_is_taken_over_forgets_what_it_had() -> None:
    column, ours, twin = kernels(torch.float32, 40, torch.float32)
    x, base = some(2, 40, seed=1), some(2, sum(PARTS), seed=2)
    column.write(np.array([2, 0]))
    for kernel in (ours, twin):
        kernel.put(2, pairs(torch.float32, 40, (0, 3, 0), seed=7))
    added: Tensor = ours.add(x, base.clone())
    torch.testing.assert_close(added, twin.add(x, base.clone()))
    assert torch.equal(added[0, :33], base[0, :33]) and torch.equal(added[0, 49:], base[0, 49:])


def test_refuses_what_it_has_no_code_for() -> None:
    cpu = torch.device("cpu")
    assert CpuLora.refuses(torch.float32, cpu) is None
    assert "float16" in (CpuLora.refuses(torch.float16, cpu) or "")
    assert CpuLora.refuses(torch.float32, torch.device("meta")) is not None
