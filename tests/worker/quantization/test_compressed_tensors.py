"""Checkpoints of compressed-tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.errors import ModelError, SettingsError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.quantization.compressed_tensors import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import CPU, PROMPT, SIZES, answers_alike

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}
FLOAT4 = INT4 | {"type": "float", "group_size": 16}
DYNAMIC = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
STATIC = DYNAMIC | {"dynamic": False, "strategy": "tensor"}
ACTORDER = {"actorder": "group"}
EVEN = {"symmetric": False}
CASES: dict[
    str, tuple[str, dict[str, Any], dict[str, Any] | None, quantized_checkpoints.Method]
] = {
    "w4a16": ("pack-quantized", INT4, None, quantized_checkpoints.packed()),
    "w4a16-asym": (
        "pack-quantized",
        INT4 | EVEN,
        None,
        quantized_checkpoints.packed(symmetric=False),
    ),
    "w4a16-actorder": (
        "pack-quantized",
        INT4 | ACTORDER,
        None,
        quantized_checkpoints.packed(act_order=True),
    ),
    "w4a16-channel": ("pack-quantized", INT4, None, quantized_checkpoints.packed(group=-1)),
    "w8a16": ("pack-quantized", INT8, None, quantized_checkpoints.packed(8)),
    "w8a8": ("int-quantized", INT8, DYNAMIC, quantized_checkpoints.int8()),
    "w8a8-asym": (
        "int-quantized",
        INT8 | EVEN,
        DYNAMIC,
        quantized_checkpoints.int8(symmetric=False),
    ),
    "w8a8-tensor": (
        "naive-quantized",
        INT8,
        STATIC,
        quantized_checkpoints.int8(per_tensor=True, static="input_scale"),
    ),
    "fp8": ("float-quantized", FLOAT8, STATIC, quantized_checkpoints.fp8(static="input_scale")),
    "fp8-channel": ("float-quantized", FLOAT8, DYNAMIC, quantized_checkpoints.fp8((1, 0))),
    "fp8-block": (
        "float-quantized",
        FLOAT8 | {"strategy": "block", "block_structure": [32, 32]},
        DYNAMIC | {"strategy": "group", "group_size": 32},
        quantized_checkpoints.fp8((32, 32), dtype=torch.bfloat16),
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        FLOAT4,
        None,
        quantized_checkpoints.nvfp4("weight_global_scale", codes="weight_packed", inverse=True),
    ),
}


def settings(written: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> Any:
    """What llm-compressor writes of one scheme for all modules."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": written,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def read(given: dict[str, Any]) -> Any:
    """As a config is read."""
    return json.loads(json.dumps(given), object_hook=lambda fields: SimpleNamespace(**fields))


@pytest.mark.row("F03.15")
@pytest.mark.parametrize("case", CASES)
def test_answers_as_the_weights_that_are_meant(tmp_path: Path, driver: Any, case: str) -> None:
    written, weights, inputs, method = CASES[case]
    given = settings(written, weights, inputs)
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", given, method, **SIZES)
    answers_alike(tmp_path, oracle, driver)


@pytest.mark.row("F23.04")
def test_inputs_are_rounded_where_that_is_asked_for(tmp_path: Path, driver: Any) -> None:
    """The reference is the model of the floats with every input of a projection rounded."""
    written, weights, inputs, method = CASES["w8a8"]
    given = settings(written, weights, inputs)
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", given, method, **SIZES)
    plain = BuildContext(CPU, torch.float32)
    asked = load_model(tmp_path, replace(plain, int8_inputs=True))
    kept = load_model(tmp_path, plain)
    ours, others = (driver(model, 1).step({0: PROMPT})[0] for model in (asked, kept))

    def rounds(module: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        scale = given[0].abs().amax(-1, keepdim=True) / 127
        return ((given[0] / scale).round() * scale,)

    for name, module in oracle.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(rounds)
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT]), use_cache=False).logits[0]
    # A value between two codes may go either way.
    assert float((ours - expected).abs().mean()) < 0.2 * float((others - expected).abs().mean())
    for other in (settings(written, weights, None), {"quant_method": "gptq", "bits": 4}):
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": other}))
        with pytest.raises(SettingsError, match="does not say how inputs are rounded"):
            load_model(tmp_path, replace(plain, int8_inputs=True))


def test_groups_of_modules_have_schemes_of_their_own(tmp_path: Path, driver: Any) -> None:
    """An expression and a name come before the class; what is ignored is stored as it is."""
    eight, four = quantized_checkpoints.packed(8), quantized_checkpoints.packed()

    def chosen(name: str) -> bool:
        return quantized_checkpoints.projections(name) and "o_proj" not in name

    def method(weight: Tensor) -> quantized_checkpoints.Rounded:
        return (eight if weight.shape == (64, 128) else four)(weight)  # The down projections.

    given = settings("pack-quantized", INT4, None)
    down = {"targets": ["re:.*down_proj$"], "weights": INT8, "input_activations": None}
    given["config_groups"]["group_1"] = down
    given["ignore"] += ["re:.*o_proj"]
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", given, method, chosen=chosen, **SIZES
    )
    answers_alike(tmp_path, oracle, driver)


def test_targets() -> None:
    given = settings("pack-quantized", INT4, None)
    given["config_groups"]["group_0"]["targets"] = ["re:.*q_proj", "down_proj"]
    of = formats(read(given))
    assert of("model.layers.0.self_attn.q_proj") is of("model.layers.1.mlp.down_proj") is not None
    assert of("model.layers.0.self_attn.k_proj") is None


def test_a_broken_target_is_an_error() -> None:
    given = settings("pack-quantized", INT4, None)
    given["config_groups"]["group_0"]["targets"] = ["re:(q_proj"]
    with pytest.raises(ModelError, match=r"target re:\(q_proj .* is no expression"):
        formats(read(given))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "marlin-24"}, "format 'marlin-24' with int4 weights cannot be read"),
        ({"format": "int-quantized"}, "Baton reads: pack-quantized int4, pack-quantized int8"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "Sparse weights"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "with transforms"),
    ],
)
def test_what_cannot_be_read_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        formats(read(settings("pack-quantized", INT4, None) | changes))
