"""The torch twin of low-rank products against the definition, and which kernel a layer gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton_worker.config import Config
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.lora import CpuLora
from baton_worker.kernels.lora import MAX_RANK, LoraPair, PlainLora, TokenAdapters, lora_kernel

CPU = torch.device("cpu")


def test_the_twin_is_the_definition() -> None:
    column, (a, b) = TokenAdapters(2, 8, CPU), (torch.randn(3, 5), torch.randn(3, 4))
    twin = PlainLora((4, 2), column)
    twin.put(1, [LoraPair(a, b, 0.5), None])
    x, base = torch.randn(3, 5), torch.randn(3, 6)
    column.write(np.array([1, -1, 1]))
    added = twin.add(x, base.clone())
    wanted = base.clone()
    wanted[[0, 2], :4] += 0.5 * x[[0, 2]] @ (b.T @ a).T
    torch.testing.assert_close(added, wanted)
    torch.testing.assert_close(twin.delta(x)[0, :4], wanted[0, :4] - base[0, :4])
    assert column.slots.tolist()[:3] == [1, -1, 1]


def test_tokens_of_a_step_without_adapters_have_none() -> None:
    column = TokenAdapters(3, 8, CPU)
    for step in ([1, -1, 2], [0, -1], [-1], [-1, -1, -1], [2], []):
        column.write(np.array(step, np.int64))
        assert column.host.tolist() == step == column.slots[: len(step)].tolist()
    column.write(np.array([-1], np.int64))
    assert (column.slots == -1).all()


def test_a_layer_gets_the_kernel_that_its_device_has() -> None:
    column = TokenAdapters(1, 8, CPU)
    half = lora_kernel(4, (2,), column, torch.empty(0, dtype=torch.float16))
    assert isinstance(half, PlainLora)
    if library("lora") is not None:
        assert isinstance(lora_kernel(4, (2,), column, torch.empty(0)), CpuLora)


def test_the_setting_allows_no_rank_that_the_kernels_have_no_room_for() -> None:
    assert Config(max_lora_rank=MAX_RANK).max_lora_rank == MAX_RANK
    with pytest.raises(ValueError, match="max_lora_rank"):
        Config(max_lora_rank=MAX_RANK + 1)
