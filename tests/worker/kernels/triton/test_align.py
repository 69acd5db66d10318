"""The layout of visits, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest
import torch

from baton_worker.kernels.moe.dispatch import dispatch


@pytest.fixture(scope="module")
def kernel(interpreted: None) -> ModuleType:
    return import_module("baton_worker.kernels.triton.align")


@pytest.mark.row("F06.02", "F06.16")
def test_blocks_hold_every_visit_once_and_one_expert_each(
    kernel: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program looks at visits several times.
    monkeypatch.setattr(kernel, "_AT_ONCE", 64)
    generator = torch.Generator().manual_seed(2)
    for tokens, num_experts, block in ((50, 6, 16), (1, 40, 16), (90, 3, 64), (0, 4, 16)):
        chosen = torch.randint(-1, num_experts + 1, (tokens, 3), generator=generator)
        found = kernel.align(chosen.to(device), num_experts, block)
        rows = found.rows.view(-1, block)
        assert found.block == block and len(rows) == len(found.experts)
        seen = []
        for row, owner in zip(rows.tolist(), found.experts.tolist(), strict=True):
            if owner == num_experts:
                continue
            real = [visit for visit in row if visit >= 0]
            assert real and row == real + [-1] * (block - len(real)), "rest of a block is empty"
            assert all(chosen.flatten()[visit] == owner for visit in real)
            seen += real
        assert seen == dispatch(chosen, num_experts).visits.tolist()
