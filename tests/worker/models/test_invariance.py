"""Batch invariance: a sequence gets the same bits alone and in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.layers.build_context import BuildContext
from tests.oracles import ropes
from tests.oracles.checkpoints import MAKERS
from tests.support import tiny_models

CPU = torch.device("cpu")
LENGTHS = (5, 17, 33, 64, 2)


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 500, (n,), generator=generator).tolist() for n in LENGTHS]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> Any:
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here: oneDNN's choose by the number of rows")
    return request.param


@pytest.fixture(scope="module", params=["none", "int8", "int4"])
def loaded(stories: Path, dtype: torch.dtype, request: pytest.FixtureRequest) -> LoadedModel:
    return load_model(stories, BuildContext(CPU, dtype, quantization=request.param))


def test_logits_of_prefill_and_decode_do_not_depend_on_the_batch(
    loaded: LoadedModel, driver: Any
) -> None:
    together = driver(loaded, len(LENGTHS), page_size=16)
    prefilled = together.step(dict(enumerate(texts())))
    decoded = together.step({row: [7] for row in range(len(LENGTHS))})
    for row, text in enumerate(texts()):
        alone = driver(loaded, 1, page_size=16)
        assert torch.equal(alone.step({0: text})[0], prefilled[row])
        assert torch.equal(alone.step({0: [7]})[0], decoded[row])


def test_logits_do_not_depend_on_where_a_prompt_is_cut(loaded: LoadedModel, driver: Any) -> None:
    text = texts()[3]
    whole = driver(loaded, 1, page_size=16).step({0: text})[0]
    for cut in (1, 16, 40, 63):
        parts = driver(loaded, 1, page_size=16)
        first, second = parts.step({0: text[:cut]})[0], parts.step({0: text[cut:]})[0]
        assert torch.equal(torch.cat([first, second]), whole), f"cut at {cut}"


CARRIED = [
    "Lfm2MoeForCausalLM",
    "MiniMaxForCausalLM",
    "Mamba2ForCausalLM",
    "BambaForCausalLM",
    "FalconH1ForCausalLM",
    pytest.param("MambaForCausalLM", marks=pytest.mark.row("S01", "F07.01", "F07.04")),
    "FalconMambaForCausalLM",
    pytest.param("JambaForCausalLM", marks=pytest.mark.row("S03")),
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "KimiLinearForCausalLM",
    "OlmoHybridForCausalLM",
]


@pytest.mark.parametrize("architecture", CARRIED)
def test_layers_of_bounded_memory_depend_on_no_cut_and_no_batch(
    architecture: str, dtype: torch.dtype, driver: Any, tmp_path: Path
) -> None:
    """Where what a token reads is not attended to, but carried on."""
    tiny_models.save_checkpoint(tmp_path, architecture)
    _check_cuts(load_model(tmp_path, BuildContext(CPU, dtype)), driver)


LATENT = [
    "DeepseekV3ForCausalLM",
    "MiniCPM3ForCausalLM",
    pytest.param("DeepseekV32ForCausalLM", marks=pytest.mark.row("F04.26", "L04")),
    pytest.param("GlmMoeDsaForCausalLM", marks=pytest.mark.row("F04.26", "L05")),
]


@pytest.mark.parametrize("architecture", LATENT)
def test_latents_and_chosen_keys_depend_on_no_cut_and_no_batch(
    architecture: str, dtype: torch.dtype, driver: Any, tmp_path: Path
) -> None:
    """Where heads share their keys, and where an index chooses among them."""
    tiny_models.save_checkpoint(tmp_path, architecture)
    _check_cuts(load_model(tmp_path, BuildContext(CPU, dtype)), driver)


@pytest.mark.parametrize("name", ropes.ROWS)
def test_odd_ropes_depend_on_no_cut_and_no_batch(
    name: str, dtype: torch.dtype, driver: Any, tmp_path: Path
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        MAKERS[name](tmp_path)
    _check_cuts(load_model(tmp_path, BuildContext(CPU, dtype)), driver)


def _check_cuts(loaded: LoadedModel, driver: Any) -> None:
    long, short = [n % 300 + 2 for n in texts()[3]], [n % 300 + 2 for n in texts()[0]]
    whole = driver(loaded, 1, page_size=16).step({0: long})[0]
    for cut in (1, 16, 40, 63):
        parts = driver(loaded, 2, page_size=16)
        first = parts.step({0: long[:cut]})[0]
        second = parts.step({1: short, 0: long[cut:]})[0]
        assert torch.equal(torch.cat([first, second]), whole), f"cut at {cut}"
