"""Checkpoints of ModelOpt."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.quantization.modelopt import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import SIZES, answers_alike

METHODS = {
    "FP8": quantized_checkpoints.fp8(static="input_scale"),
    "FP8_PER_CHANNEL_PER_TOKEN": quantized_checkpoints.fp8((1, 0)),
    "FP8_PB_WO": quantized_checkpoints.fp8((128, 128)),
    "NVFP4": quantized_checkpoints.nvfp4("weight_scale_2", codes="weight", inverse=False),
}


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param("FP8", marks=pytest.mark.row("F03.20")),
        pytest.param("FP8_PER_CHANNEL_PER_TOKEN", marks=pytest.mark.row("F03.21")),
        pytest.param("FP8_PB_WO", marks=pytest.mark.row("F03.22")),
        pytest.param("NVFP4", marks=pytest.mark.row("F03.23")),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_answers_as_the_weights_that_are_meant(
    tmp_path: Path, driver: Any, algorithm: str, nested: bool
) -> None:
    """Settings are in the config, or nested in a file beside it."""
    flat = {"quant_method": "modelopt", "quant_algo": algorithm}
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", flat, METHODS[algorithm], **SIZES
    )
    if nested:
        config = json.loads((tmp_path / "config.json").read_text())
        del config["quantization_config"]
        (tmp_path / "config.json").write_text(json.dumps(config))
        inner = {"quant_algo": algorithm, "exclude_modules": ["lm_head"]}
        given = {"producer": {"name": "modelopt"}, "quantization": inner}
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(given))
    answers_alike(tmp_path, oracle, driver)


def test_other_algorithms_are_refused() -> None:
    with pytest.raises(ModelError, match=r"W4A8_AWQ cannot be read\. Baton reads: FP8, "):
        formats(SimpleNamespace(quant_algo="W4A8_AWQ"))
