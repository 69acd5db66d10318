"""Whole models on the kernels that read weights as a checkpoint stores them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels import fp8, linear, packed_linear
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.linear import TritonLinear
from baton_worker.kernels.moe.grouped import GroupedExperts
from baton_worker.kernels.mxfp4 import Mxfp4Weight
from baton_worker.kernels.nvfp4 import Nvfp4Weight
from baton_worker.kernels.packed_linear import PackedLinear
from baton_worker.layers.attention.indexer import Exact
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.moe.moe import Experts
from baton_worker.spec import Glu, Moe, Router
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
    for module in (linear, packed_linear):
        monkeypatch.setattr(module, "runs", lambda device: True)
    monkeypatch.setattr(packed_linear, "has_float8", lambda device: True)
    for weight in (GptqWeight, fp8.Fp8Weight, Mxfp4Weight, Nvfp4Weight):
        monkeypatch.setattr(weight, "blocks", lambda self: None)


def gptq_weight(rows: int, columns: int) -> GptqWeight:
    codes = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    scales = torch.rand(columns // 32, rows)
    return GptqWeight.of(codes, 4, scales, torch.full_like(scales, 8, dtype=torch.int16))


def loaded(folder: Path) -> LoadedModel:
    made = load_model(folder, BuildContext(CPU, torch.float32))
    layers = [module for module in made.model.modules() if isinstance(module, Linear)]
    stored = [layer for layer in layers if isinstance(layer._kernel, TritonLinear | PackedLinear)]
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


STAGED = BuildContext(torch.device("meta"), torch.float32, staging=CPU)
"""A device that is not the host; nothing is computed on it."""


def test_weights_that_stay_packed_are_nowhere_floats(on_triton: None) -> None:
    layer = Linear(64, {"a": 32, "b": 32}, STAGED, bias=True)
    assert layer.weight is not None and layer.weight.device == CPU
    assert layer.bias is not None and layer.bias.device == layer.like.device == STAGED.device
    weight = gptq_weight(32, 64)
    assert all(layer.load_quantized(f"{part}.weight", weight) for part in "ab")
    layer.process_weights_after_loading()
    assert isinstance(layer._kernel, PackedLinear) and layer.weight is None
    assert [product._weights.words.device for product in layer._kernel._products] == [STAGED.device]
    # Rows are filled up to a whole tile of 128 channels.
    assert 0 < layer.weight_bytes < 3 * weight.nbytes < 64 * 64 * 4


def test_floats_go_to_the_device_when_a_layer_has_them_all(on_triton: None) -> None:
    layer = Linear(64, {"a": 32, "b": 32}, STAGED)
    assert layer.load_quantized("a.weight", gptq_weight(32, 64))
    layer.process_weights_after_loading()
    assert layer.weight is not None and layer.weight.device == STAGED.device
    exact = Exact(64, {"a": 32}, STAGED)
    assert not exact.load_quantized("a.weight", gptq_weight(32, 64))
    exact.process_weights_after_loading()
    assert exact.weight is not None and exact.weight.device == STAGED.device


@pytest.mark.parametrize("floats", [False, True])
def test_experts_too(on_triton: None, floats: bool) -> None:
    context = replace(STAGED, name=lambda role: role + ".{expert}")
    layer = Experts(Moe(Router(4, 2), Glu(32)), 64, context)
    assert layer.gate_up is not None and layer.gate_up.device == CPU
    names = [name for name, _ in layer.weight_targets()]
    taken = [name for name in names if not (floats and name == "expert_up.2.weight")]
    sizes = {name: (64, 32) if "down" in name else (32, 64) for name in taken}
    names_taken = [n for n in taken if layer.load_quantized(n, gptq_weight(*sizes[n]))]
    assert names_taken == taken
    layer.process_weights_after_loading()
    assert isinstance(layer._kernel, GroupedExperts) and layer.gate_up is None
    kernels = [*layer._kernel._gate_up, *layer._kernel._down]
    assert sum(isinstance(kernel, PackedLinear) for kernel in kernels) == 8 - floats
    packed = gptq_weight(32, 64).nbytes
    # Rows of 64 channels and less are filled up to tiles of 128.
    assert packed * 8 < layer.weight_bytes < packed * 24 + floats * 64 * 64 * 4


@pytest.mark.parametrize("scheme", ["gptq", "fp8"])
def test_experts_multiply_with_what_is_stored(
    tmp_path: Path, driver: Any, on_triton: None, scheme: str
) -> None:
    settings: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    method = quantized_checkpoints.gptq(symmetric=False)
    if scheme == "fp8":
        settings = {"quant_method": "fp8", "weight_block_size": [32, 32]}
        method = quantized_checkpoints.fp8((32, 32), scale="weight_scale_inv")
    oracle = quantized_checkpoints.save(
        tmp_path,
        "Qwen3MoeForCausalLM",
        settings,
        method,
        chosen=lambda name: ".experts." in name,
        **SIZES | {"moe_intermediate_size": 64},
    )
    made = load_model(tmp_path, BuildContext(CPU, torch.float32))
    layers = [layer for layer in made.model.layers() if isinstance(layer, Experts)]
    weights = sum(p.numel() for name, p in oracle.named_parameters() if ".experts." in name)
    held = sum(layer.weight_bytes for layer in layers) * 8 / weights
    # Rows of 64 channels take a whole tile of 128 of four bits each.
    assert held < (9 if scheme == "gptq" else 8.5)
    found = driver(made, 1).step({0: TEXT})[0]
    with torch.inference_mode():
        plain = oracle(torch.tensor([TEXT]), use_cache=False).logits[0]
    difference = float((found - plain).norm() / plain.norm())
    # Products of 8-bit floats round their inputs too.
    assert difference < 1e-4 if scheme == "gptq" else 1e-4 < difference < 0.3
