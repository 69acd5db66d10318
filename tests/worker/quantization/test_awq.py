"""Checkpoints of AWQ."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.quantization.awq import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import SIZES, answers_alike

SETTINGS = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "version": "gemm",
    "zero_point": True,
    "modules_to_not_convert": ["lm_head"],
}


@pytest.mark.row("F03.08", "F03.25")
@pytest.mark.parametrize("group", [16, 32, 64, -1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_answers_as_the_weights_that_are_meant(
    tmp_path: Path, driver: Any, group: int, dtype: torch.dtype
) -> None:
    method = quantized_checkpoints.awq(group, dtype)
    settings = SETTINGS | {"group_size": group}
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **SIZES)
    answers_alike(tmp_path, oracle, driver)


@pytest.mark.row("F03.17")
def test_experts(tmp_path: Path, driver: Any) -> None:
    sizes = SIZES | {"moe_intermediate_size": 32}
    oracle = quantized_checkpoints.save(
        tmp_path,
        "Qwen3MoeForCausalLM",
        SETTINGS,
        quantized_checkpoints.awq(),
        chosen=lambda name: ".experts." in name,
        **sizes,
    )
    answers_alike(tmp_path, oracle, driver)


@pytest.mark.row("F03.09")
def test_nibbles_and_zeros_are_those_of_the_same_codes_in_order() -> None:
    """What is read of AWQ is what is read of GPTQ, where both store the same codes."""
    weight = torch.randn(64, 96)
    stored, meant = quantized_checkpoints.awq()(weight)
    form = formats(SimpleNamespace(**SETTINGS | {"quant_method": "awq_marlin"}))("x")
    assert form is not None
    ours = form.read(stored)
    same, _ = quantized_checkpoints.gptq(symmetric=False, offset=0)(weight)
    assert torch.equal(ours.words, same["qweight"])  # type: ignore[union-attr]
    assert torch.equal(ours.groups, same["g_idx"])  # type: ignore[union-attr]
    zeros = quantized_checkpoints.by_row(ours.zeros.long(), 4)  # type: ignore[union-attr]
    assert torch.equal(zeros, same["qzeros"]) and torch.equal(ours.dequantise(), meant)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": 8}, "of 8 bits cannot be read"),
        ({"version": "gemv_fast"}, "layout 'gemv_fast' cannot be read"),
        ({"zero_point": False}, "without zero points"),
    ],
)
def test_what_cannot_be_read_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        formats(SimpleNamespace(**SETTINGS | changes))


def test_settings_of_the_first_tools() -> None:
    given = {"w_bit": 4, "q_group_size": 128, "version": "GEMM", "zero_point": True}
    assert formats(SimpleNamespace(**given))("x") is not None
