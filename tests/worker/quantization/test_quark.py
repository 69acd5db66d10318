"""Checkpoints of Quark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.quantization.quark import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import SIZES, answers_alike, fp8, mxfp4

FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
CASES: dict[str, tuple[dict[str, Any], quantized_checkpoints.Method]] = {
    "per_tensor": (
        {
            "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
            "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False},
        },
        fp8(static="input_scale"),
    ),
    "per_channel": ({"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}}, fp8((1, 0))),
    "mxfp4": ({"weight": FP4}, mxfp4()),
}


@pytest.mark.row("F03.29")
@pytest.mark.parametrize("case", CASES)
def test_answers_as_the_weights_that_are_meant(tmp_path: Path, driver: Any, case: str) -> None:
    scheme, method = CASES[case]
    settings = {"quant_method": "quark", "global_quant_config": scheme, "exclude": ["lm_head"]}
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **SIZES)
    answers_alike(tmp_path, oracle, driver)


def test_other_schemes_are_refused() -> None:
    weight = SimpleNamespace(dtype="int4", qscheme="per_group")
    with pytest.raises(ModelError, match="int4 per_group cannot be read"):
        formats(SimpleNamespace(global_quant_config=SimpleNamespace(weight=weight)))
    with pytest.raises(ModelError, match="lacks global_quant_config"):
        formats(SimpleNamespace())
    differing = SimpleNamespace(layer_quant_config=SimpleNamespace(lm_head=weight))
    with pytest.raises(ModelError, match="differs by layer"):
        formats(differing)
