"""Batch invariance with experts: routing and the sum of expert outputs do not depend on the
batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.cpu import library
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models


def prompt(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(
        2, tiny_models.VOCAB_SIZE, (length,), generator=generator
    ).tolist()
    return ids


@pytest.mark.skipif(
    library("linear") is None or library("attention") is None,
    reason="the CPU kernels cannot be built here: other products depend on the batch",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", ["Qwen2MoeForCausalLM", "Glm4MoeForCausalLM"])
def test_neither_chunks_nor_neighbours_change_a_bit(
    architecture: str, dtype: torch.dtype, tmp_path: Path, driver: Any
) -> None:
    tiny_models.save_checkpoint(tmp_path, architecture)
    loaded = load_model(tmp_path, BuildContext(torch.device("cpu"), dtype))
    tokens, others = prompt(0, 100), prompt(1, 40)
    alone = driver(loaded, 1).step({0: tokens})[0]
    for size in (1, 7, 64):
        run = driver(loaded, 1)
        parts = [run.step({0: tokens[i : i + size]})[0] for i in range(0, 100, size)]
        assert torch.equal(torch.cat(parts), alone)
    beside = driver(loaded, 2).step({1: others, 0: tokens})[0]
    assert torch.equal(beside, alone)
