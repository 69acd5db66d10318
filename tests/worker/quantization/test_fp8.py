"""Checkpoints in 8-bit floats."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.fp8 import Fp8Weight
from baton_worker.layers.build_context import BuildContext
from baton_worker.quantization.fp8 import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import CPU, SIZES, answers_alike

BLOCK = (16, 16)
CASES: dict[str, tuple[dict[str, Any], quantized_checkpoints.Method]] = {
    "tensor-dynamic": ({"activation_scheme": "dynamic"}, quantized_checkpoints.fp8()),
    "tensor-static": (
        {"activation_scheme": "static"},
        quantized_checkpoints.fp8(static="input_scale"),
    ),
    "spelled-otherwise": (
        {"activation_scheme": "static", "weight_block_size": None},
        quantized_checkpoints.fp8(scale="weight_scale_inv", static="activation_scale"),
    ),
    "block-dynamic": (
        {"activation_scheme": "dynamic", "weight_block_size": [16, 16], "fmt": "e4m3"},
        quantized_checkpoints.fp8(BLOCK, scale="weight_scale_inv"),
    ),
    "block-cut": (
        {"activation_scheme": "dynamic", "weight_block_size": [48, 48]},
        quantized_checkpoints.fp8((48, 48), scale="weight_scale_inv"),
    ),
}


@pytest.mark.row("F03.01")
@pytest.mark.parametrize("case", CASES)
def test_answers_as_the_weights_that_are_meant(tmp_path: Path, driver: Any, case: str) -> None:
    given, method = CASES[case]
    settings = given | {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **SIZES)
    answers_alike(tmp_path, oracle, driver)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
            marks=pytest.mark.row("F03.03"),
        ),
        pytest.param({"quant_method": "ptpc_fp8"}, marks=pytest.mark.row("F03.04")),
    ],
)
def test_a_scale_per_row(tmp_path: Path, driver: Any, settings: dict[str, Any]) -> None:
    """Modules that are not converted are stored as they are."""

    def chosen(name: str) -> bool:
        return quantized_checkpoints.projections(name) and "layers.1." not in name

    left = {"modules_to_not_convert": ["lm_head", "model.layers.1"]}
    method = quantized_checkpoints.fp8((1, 0))
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings | left, method, chosen=chosen, **SIZES
    )
    answers_alike(tmp_path, oracle, driver)


@pytest.mark.row("L03")
def test_deepseek_v3_in_8_bit_floats_with_draft_layers_that_stay_unread(
    tmp_path: Path, driver: Any
) -> None:
    settings = {"quant_method": "fp8", "weight_block_size": list(BLOCK)}
    method = quantized_checkpoints.fp8(BLOCK, scale="weight_scale_inv")
    oracle = quantized_checkpoints.save(tmp_path, "DeepseekV3ForCausalLM", settings, method)
    parts, _ = method(torch.randn(48, 96))
    draft = {f"model.layers.3.eh_proj.{part}": tensor for part, tensor in parts.items()}
    quantized_checkpoints.add(tmp_path, draft, num_nextn_predict_layers=1)
    answers_alike(tmp_path, oracle, driver)


def test_scales_of_pages_in_the_layout_of_weights_are_left(tmp_path: Path, driver: Any) -> None:
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings, quantized_checkpoints.fp8(), **SIZES
    )
    name = "model.layers.0.self_attn.k_proj.k_scale"
    quantized_checkpoints.add(tmp_path, {name: torch.tensor(0.5)})
    answers_alike(tmp_path, oracle, driver)


def read(settings: dict[str, Any], parts: dict[str, torch.Tensor]) -> Fp8Weight:
    form = formats(SimpleNamespace(**settings))("x")
    assert form is not None and form.parts == parts.keys()
    weight = form.read(parts)
    assert isinstance(weight, Fp8Weight)
    return weight


def test_how_inputs_are_rounded_is_read_too() -> None:
    weight, _ = quantized_checkpoints.fp8(static="input_scale")(torch.randn(8, 32))
    static = read({"activation_scheme": "static"}, weight).inputs
    assert static.scale == torch.tensor(0.05) and static.group is None
    blocks, _ = quantized_checkpoints.fp8((4, 16))(torch.randn(8, 32))
    assert read({"weight_block_size": [4, 16]}, blocks).inputs.group == 16
    rows, _ = quantized_checkpoints.fp8((1, 0))(torch.randn(8, 32))
    assert read({"activation_scale_ub": 1200.0}, rows).inputs.most == 1200.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fmt": "e5m2"}, "of the kind e5m2 cannot be read"),
        ({"activation_scheme": "both"}, "'both' is unknown. Known: dynamic, static"),
    ],
)
def test_what_cannot_be_read_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        formats(SimpleNamespace(**settings))


def test_scales_that_are_none_of_the_weight(tmp_path: Path) -> None:
    settings = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    method = quantized_checkpoints.fp8((32, 32))
    quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **SIZES)
    with pytest.raises(ModelError, match=r"do not fit one another: .*weight_scale"):
        load_model(tmp_path, BuildContext(CPU, torch.float32))
