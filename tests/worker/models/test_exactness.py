"""The promise of the CPU kernels, through a whole model: a token's logits have the same bits
whatever else is in the batch and however its prompt was cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels.cpu import library
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

CPU = torch.device("cpu")
LENGTH = 200
KERNELS = ("attention", "linear", "norm", "rope")


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Head norms, grouped heads, gate: every CPU kernel takes part."""
    if any(library(name) is None for name in KERNELS):
        pytest.skip("the kernels cannot be built here")
    folder: Path = tmp_path_factory.mktemp("bits")
    tiny_models.save_checkpoint(folder, "Qwen3ForCausalLM")
    return load_model(folder, BuildContext(CPU, request.param))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def prompt(seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, tiny_models.VOCAB_SIZE, (LENGTH,), generator=generator).tolist()


@pytest.fixture(scope="module")
def whole(loaded: LoadedModel, driver: Any) -> torch.Tensor:
    """Logits [LENGTH, vocab] of a prompt that is run alone in one piece."""
    logits: torch.Tensor = driver(loaded, 1).step({0: prompt(0)})[0]
    return logits


@pytest.mark.parametrize("size", [1, 7, 64])
def test_in_chunks(
    loaded: LoadedModel, whole: torch.Tensor, driver: Any, threads: int, size: int
) -> None:
    run, tokens = driver(loaded, 1), prompt(0)
    parts = [run.step({0: tokens[i : i + size]})[0] for i in range(0, LENGTH, size)]
    assert torch.equal(torch.cat(parts), whole)


def test_among_others(loaded: LoadedModel, whole: torch.Tensor, driver: Any, threads: int) -> None:
    """Beside prompts in pieces of their own, and beside rows that decode."""
    run, mine = driver(loaded, 4), prompt(0)
    others = {row: prompt(row) for row in (1, 2, 3)}
    run.step({1: others[1][:20], 2: others[2][:150]})
    first = run.step({1: others[1][20:21], 0: mine[:90], 3: others[3][:33]})[0]
    second = run.step({0: mine[90:199], 2: others[2][150:151], 1: others[1][21:22]})[0]
    third = run.step({3: others[3][33:34], 1: others[1][22:23], 0: mine[199:]})[0]
    assert torch.equal(torch.cat((first, second, third)), whole)
