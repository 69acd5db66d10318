"""Which method reads a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.quantization.blocks import scheme
from baton_worker.quantization.methods import (
    ALIASES,
    METHODS,
    ONLINE,
    REFUSED,
    formats,
    method,
)
from tests.support import quantized_checkpoints, tiny_models
from tests.support.quantized_checkpoints import SIZES, answers_alike

NAMES = [
    *("awq", "auto_awq", "awq_marlin", "awq_triton", "cpu_awq"),
    *("gptq", "auto_gptq", "gptq_marlin", "marlin", "auto-round", "inc"),
    *("fp8", "fbgemm_fp8", "ptpc_fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel"),
    *("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "compressed-tensors"),
    *("mxfp4", "gpt_oss_mxfp4", "mxfp8", "fp_quant", "petit_nvfp4", "nvfp4_per_token"),
    *("experts_int8", "moe_wna16", "int8_per_channel_weight_only", "online", "humming"),
    *("bitsandbytes", "gguf", "quark", "torchao", "deepseek_v4_fp8", "exl3", "hqq", "aqlm"),
]
"""What others know."""


def config(**settings: Any) -> SimpleNamespace:
    return SimpleNamespace(quantization_config=SimpleNamespace(**settings))


@pytest.mark.row("F03.32")
@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_that_of_a_method_or_is_refused_with_the_reason(name: str) -> None:
    given = config(quant_method=name)
    if name in REFUSED:
        with pytest.raises(ModelError) as error:
            method(given)
        assert f"quantised with {name}, which Baton cannot load" in error.value.message
        assert error.value.message.endswith(REFUSED[name])
    elif name in ONLINE:
        assert method(given) is None and scheme(given) == name
    else:
        assert method(given) in METHODS


@pytest.mark.row("F03.32")
def test_an_unknown_one_errors_with_the_list() -> None:
    with pytest.raises(ModelError) as error:
        method(config(quant_method="w3_magic"))
    assert "quantised with w3_magic, a method that Baton does not know" in error.value.message
    assert all(name in error.value.message for name in (*METHODS.names(), *ALIASES, "auto-round"))


def test_no_method_is_none_and_an_unnamed_one_is_unknown() -> None:
    assert method(SimpleNamespace()) is None and formats(SimpleNamespace()) is None
    with pytest.raises(ModelError, match="an unnamed method"):
        method(config(bits=4))
    assert method(config(quantization=SimpleNamespace(quant_algo="FP8"))) == "modelopt"


def test_a_lacking_field_is_named() -> None:
    groups = SimpleNamespace(group_0=SimpleNamespace(targets=["Linear"]))
    with pytest.raises(ModelError, match=r"says of compressed-tensors lacks a field: .*weights"):
        formats(config(quant_method="compressed-tensors", config_groups=groups))
    for name, field in (("compressed-tensors", "config_groups"), ("fp8", "weight_block_size")):
        with pytest.raises(ModelError, match="quantization_config cannot be read as one of"):
            formats(config(**{"quant_method": name, field: 3}))


@pytest.mark.row("F03.26")
@pytest.mark.parametrize("name", ["auto-round", "inc", "intel/auto-round"])
@pytest.mark.parametrize("packing", ["auto_round:auto_gptq", "auto_round:auto_awq", "auto_gptq"])
def test_what_intel_packs(tmp_path: Path, driver: Any, name: str, packing: str) -> None:
    rounded = quantized_checkpoints.awq() if "awq" in packing else quantized_checkpoints.gptq()
    settings = {
        "quant_method": name,
        "packing_format": packing,
        "bits": 4,
        "group_size": 32,
        "sym": "awq" not in packing,
    }
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, rounded, **SIZES)
    answers_alike(tmp_path, oracle, driver)


def test_other_packings_of_intel_are_refused() -> None:
    with pytest.raises(ModelError, match="packed as 'auto_round:marlin' cannot be read"):
        method(config(quant_method="auto-round", packing_format="auto_round:marlin"))


MATRICES = ("_proj.weight", "c_attn.weight", "c_fc.weight", "in_proj_qkvz.weight")


@pytest.mark.parametrize(
    "architecture",
    ["Qwen3ForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel", "Qwen3NextForCausalLM"],
)
def test_any_architecture_and_any_method(tmp_path: Path, driver: Any, architecture: str) -> None:
    """Also one whose query, key and value are stored as one matrix, or are dealt out in one."""
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    oracle = quantized_checkpoints.save(
        tmp_path,
        architecture,
        settings,
        quantized_checkpoints.fp8(),
        chosen=lambda name: name.endswith(MATRICES),
    )
    answers_alike(tmp_path, oracle, driver)


def test_codes_that_the_config_says_nothing_of_are_an_error(tmp_path: Path) -> None:
    settings = {"quant_method": "fp8"}
    quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings, quantized_checkpoints.fp8(), **SIZES
    )
    plain = json.loads((tmp_path / "config.json").read_text())
    del plain["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(plain))
    with pytest.raises(ModelError, match="the config says nothing of quantised weights"):
        load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))


def test_a_refused_checkpoint_is_refused_before_it_is_read(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM")
    (tmp_path / "model.safetensors").unlink()
    given = json.loads((tmp_path / "config.json").read_text())
    given["quantization_config"] = {"quant_method": "hqq", "nbits": 4}
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(ModelError, match="quantised with hqq, which Baton cannot load"):
        load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
