"""Whole models on the kernels that read weights as a checkpoint stores them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.checkpoint.load import LoadedModel, load_model
from baton_worker.kernels import fp8, linear
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.linear import TritonLinear
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from tests.fakes.triton_interpreter import interpreter
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import CPU, SIZES

pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be tested")
TEXT = list(range(2, 14))
LAYERS = 3 * 4
"""Query, key and value; output; gate and up; down."""


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    with interpreter():
        yield


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose CPU passes for a GPU."""
    monkeypatch.setattr(linear, "runs", lambda device: True)
    for weight in (GptqWeight, fp8.Fp8Weight):
        monkeypatch.setattr(weight, "blocks", lambda self: None)


def loaded(folder: Path) -> LoadedModel:
    made = load_model(folder, BuildContext(CPU, torch.float32))
    layers = [module for module in made.model.modules() if isinstance(module, Linear)]
    stored = [layer for layer in layers if isinstance(layer._kernel, TritonLinear)]
    assert len(stored) == LAYERS and all(layer.weight is None for layer in stored)
    assert all(0 < layer.weight_bytes < 320 * 64 * 4 for layer in stored)
    return made


@pytest.mark.parametrize("order", [False, True])
def test_gptq(tmp_path: Path, driver: Any, on_triton: None, order: bool) -> None:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": order}
    method = quantized_checkpoints.gptq(symmetric=False, act_order=order)
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **SIZES)
    run = driver(loaded(tmp_path), 1)
    found = torch.cat([run.step({0: TEXT[:7]})[0], run.step({0: TEXT[7:]})[0]])
    with torch.inference_mode():
        expected = oracle(torch.tensor([TEXT]), use_cache=False).logits[0]
    assert float((found - expected).abs().max()) < 1e-3


@pytest.mark.parametrize("scheme", ["static", "dynamic", "block"])
def test_fp8_rounds_inputs_as_the_checkpoint_says(
    tmp_path: Path, driver: Any, on_triton: None, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    block = (32, 32) if scheme == "block" else None
    settings: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": block}
    settings["activation_scheme"] = "static" if scheme == "static" else "dynamic"
    static = "input_scale" if scheme == "static" else None
    method = quantized_checkpoints.fp8(block, static=static)
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **SIZES)
    found = driver(loaded(tmp_path), 1).step({0: TEXT})[0]

    def twin(x: Tensor, weight: fp8.Fp8Weight) -> Tensor:
        return fp8.product(x, weight)

    monkeypatch.setattr(import_module("baton_worker.kernels.triton.fp8"), "product", twin)
    expected = driver(loaded(tmp_path), 1).step({0: TEXT})[0]
    # A sum that is rounded otherwise may put an input on the next code of eight bits.
    assert float((found - expected).norm() / expected.norm()) < 0.02
    with torch.inference_mode():
        plain = oracle(torch.tensor([TEXT]), use_cache=False).logits[0]
    difference = float((found - plain).norm() / plain.norm())
    assert 1e-3 < difference < 0.5
