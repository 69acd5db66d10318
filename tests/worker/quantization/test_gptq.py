"""Checkpoints of GPTQ: every width, group, order and way to store zeros."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.layers.build_context import BuildContext
from baton_worker.quantization.gptq import formats
from tests.fakes.threaded_ranks import Threaded, together
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import (
    CPU,
    PROMPT,
    SIZES,
    answers_alike,
)

needs_kernels = pytest.mark.skipif(
    CpuLinear.refuses(torch.zeros(1, 1)) is not None, reason="no C++ compiler here"
)
FOUR = {"bits": 4, "group": 32, "symmetric": False}

FORMS: list[dict[str, Any]] = [
    *({"bits": bits, "group": 32, "symmetric": even} for bits in (2, 3, 4, 8) for even in (0, 1)),
    {"bits": 4, "group": -1, "symmetric": False},
    {"bits": 4, "group": 16, "symmetric": True},
    {"bits": 4, "group": 64, "symmetric": False, "dtype": torch.bfloat16},
    *({"bits": bits, "group": 32, "act_order": True, "symmetric": False} for bits in (3, 4)),
    {"bits": 4, "group": -1, "act_order": True},
    {"bits": 4, "group": 32, "symmetric": False, "offset": 0},
    {"bits": 8, "group": 64, "offset": 0},
]


def settings(form: dict[str, Any]) -> dict[str, Any]:
    """What AutoGPTQ writes of a form."""
    return {
        "quant_method": "gptq",
        "bits": form["bits"],
        "group_size": form["group"],
        "desc_act": bool(form.get("act_order")),
        "sym": bool(form.get("symmetric", True)),
        "checkpoint_format": "gptq_v2" if form.get("offset") == 0 else "gptq",
    }


def name(form: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in form.items())


@pytest.mark.row("F03.06")
@pytest.mark.parametrize("form", FORMS, ids=name)
def test_answers_as_the_weights_that_are_meant(
    tmp_path: Path, driver: Any, form: dict[str, Any]
) -> None:
    method = quantized_checkpoints.gptq(**form)
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings(form), method, **SIZES
    )
    answers_alike(tmp_path, oracle, driver)


@needs_kernels
@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"bits": 4, "group": 64}, "21 quantised weights run as packed as they are"),
        (FOUR, "21 quantised weights run as packed as they are"),
        ({"bits": 8, "group": -1}, "21 quantised weights run as packed as they are"),
        (FOUR | {"act_order": True}, "21 quantised weights are dequantised"),
        ({"bits": 4, "group": 16}, "21 quantised weights are dequantised"),
    ],
)
def test_the_log_says_what_runs_packed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: dict[str, Any], said: str
) -> None:
    quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings(form), quantized_checkpoints.gptq(**form), **SIZES
    )
    caplog.set_level("INFO")
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    assert said in caplog.text
    # Tables and heads are floats in both; seven projections of three layers are what differs.
    values = 3 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3)
    floats = 2 * 320 * 64 * 4
    taken = (loaded.weight_bytes - floats) / values
    assert (taken < 1.5) is ("as packed" in said)


@pytest.mark.parametrize("form", [FOUR, FOUR | {"act_order": True}], ids=name)
def test_two_ranks_answer_as_one(tmp_path: Path, driver: Any, form: dict[str, Any]) -> None:
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings(form), quantized_checkpoints.gptq(**form), **SIZES
    )

    def part(ranks: Threaded) -> Tensor:
        loaded = load_model(tmp_path, BuildContext(CPU, torch.float32), split=ModelSplit(ranks))
        logits: Tensor = driver(loaded, 1).step({0: PROMPT})[0]
        return logits

    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT]), use_cache=False).logits[0]
    for logits in together(2, part):
        assert float((logits - expected).abs().max()) < 1e-3


def test_heads_may_be_quantised_and_blocks_cut_beside_them(tmp_path: Path, driver: Any) -> None:
    def chosen(name: str) -> bool:
        return name.endswith(("_proj.weight", "lm_head.weight"))

    method = quantized_checkpoints.gptq(**FOUR)
    oracle = quantized_checkpoints.save(
        tmp_path,
        "Qwen2ForCausalLM",
        settings(FOUR),
        method,
        chosen=chosen,
        **SIZES,
        tie_word_embeddings=False,
    )
    answers_alike(tmp_path, oracle, driver)


@pytest.mark.row("F03.17")
@pytest.mark.parametrize("architecture", ["Qwen2MoeForCausalLM", "MixtralForCausalLM"])
def test_experts(tmp_path: Path, driver: Any, architecture: str) -> None:
    def chosen(name: str) -> bool:
        return ".experts." in name

    sizes = SIZES | {"moe_intermediate_size": 64} if "Qwen" in architecture else SIZES
    method = quantized_checkpoints.gptq(**FOUR)
    oracle = quantized_checkpoints.save(
        tmp_path, architecture, settings(FOUR), method, chosen=chosen, **sizes
    )
    answers_alike(tmp_path, oracle, driver)


def test_a_bias_of_zeros_that_no_layer_has_is_left(tmp_path: Path, driver: Any) -> None:
    def method(weight: Tensor) -> quantized_checkpoints.Rounded:
        stored, meant = quantized_checkpoints.gptq(**FOUR)(weight)
        return stored | {"bias": torch.zeros(len(weight))}, meant

    sizes = SIZES | {"attention_bias": False, "mlp_bias": False}
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings(FOUR), method, **sizes
    )
    answers_alike(tmp_path, oracle, driver)


def test_settings_may_stand_in_a_file_of_their_own(tmp_path: Path, driver: Any) -> None:
    method = quantized_checkpoints.gptq(**FOUR)
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", {}, method, **SIZES)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    beside = {key: value for key, value in settings(FOUR).items() if key != "quant_method"}
    (tmp_path / "quantize_config.json").write_text(json.dumps(beside))
    answers_alike(tmp_path, oracle, driver)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": 5}, "of 5 bits cannot be read. Baton reads 2, 3, 4, 8 bits"),
        ({"checkpoint_format": "bitblas"}, "'bitblas' cannot be read: it is that of one GPU"),
        ({"checkpoint_format": "marlin", "desc_act": True}, "4 bits without act-order"),
        ({"dynamic": SimpleNamespace(**{"+:.*down.*": SimpleNamespace(bits=8)})}, "'dynamic'"),
        ({"extra_config": SimpleNamespace(x=SimpleNamespace(bits=8))}, "'extra_config'"),
        ({"pack_dtype": "int16"}, "32-bit words only"),
    ],
)
def test_what_cannot_be_read_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError) as error:
        formats(SimpleNamespace(**settings(FOUR) | changes))
    assert said in error.value.message


def test_modules_may_be_left_out() -> None:
    rules = {"dynamic": SimpleNamespace(**{"-:.*down.*": SimpleNamespace()})}
    assert formats(SimpleNamespace(**settings(FOUR) | rules))("x") is not None


@pytest.mark.parametrize("part", ["g_idx", "scales", "qweight"])
def test_parts_of_other_shapes_are_an_error(tmp_path: Path, part: str) -> None:
    def method(weight: Tensor) -> quantized_checkpoints.Rounded:
        stored, meant = quantized_checkpoints.gptq(**FOUR, act_order=True)(weight)
        stored[part] = stored[part] + 2 if part == "g_idx" else stored[part][:-1].contiguous()
        return stored, meant

    form = FOUR | {"act_order": True}
    quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings(form), method, **SIZES)
    with pytest.raises(ModelError, match="do not fit one another"):
        load_model(tmp_path, BuildContext(CPU, torch.float32))


def test_a_lacking_part_is_named(tmp_path: Path) -> None:
    def method(weight: Tensor) -> quantized_checkpoints.Rounded:
        stored, meant = quantized_checkpoints.gptq(**FOUR)(weight)
        return {key: value for key, value in stored.items() if key != "qzeros"}, meant

    quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings(FOUR), method, **SIZES)
    with pytest.raises(ModelError, match=r"_proj\.weight is quantised, .* lacks .* qzeros"):
        load_model(tmp_path, BuildContext(CPU, torch.float32))
