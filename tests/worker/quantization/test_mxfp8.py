"""MXFP8 checkpoints, plain and as ModelOpt names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import SIZES, answers_alike


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"quant_method": "mxfp8"}, marks=pytest.mark.row("F03.18")),
        pytest.param(
            {"quant_method": "modelopt", "quant_algo": "MXFP8"}, marks=pytest.mark.row("F03.24")
        ),
    ],
    ids=["mxfp8", "modelopt"],
)
def test_answers_as_the_weights_that_are_meant(
    tmp_path: Path, driver: Any, settings: dict[str, str]
) -> None:
    method = quantized_checkpoints.mxfp8()
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **SIZES)
    answers_alike(tmp_path, oracle, driver)
