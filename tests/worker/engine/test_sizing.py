"""Sizes of steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.engine.engine_config import resolve
from baton_worker.engine.sizing import batch_tokens
from baton_worker.layers.build_context import BuildContext
from baton_worker.pooling.recipe import PoolingRecipe

CPU = BuildContext(torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, CPU)


@pytest.mark.parametrize(
    ("whole", "generates", "given", "tokens"),
    [
        (False, True, {}, 512),
        (False, True, {"max_num_seqs": 300}, 600),
        (False, True, {"max_num_batched_tokens": 40}, 40),
        (True, True, {}, 2048),
        (True, True, {"max_num_batched_tokens": 300}, 300),
        (True, False, {"max_num_batched_tokens": 300}, 512),
    ],
)
def test_tokens_of_a_step(
    loaded: LoadedModel, whole: bool, generates: bool, given: dict[str, Any], tokens: int
) -> None:
    """Room for prompts beside a full batch, and for texts that are not cut."""
    recipe = PoolingRecipe("embed", "mean", "normalize", 64, whole=whole)
    told = replace(loaded, recipe=recipe, generates=generates)
    assert (
        resolve(Config(num_gpu_blocks_override=100, **given), CPU, told).max_num_batched_tokens
        == tokens
    )


def test_steps_on_a_gpu_have_more_tokens(loaded: LoadedModel) -> None:
    assert batch_tokens(Config(), loaded, 512, on_cpu=False) == 2048
