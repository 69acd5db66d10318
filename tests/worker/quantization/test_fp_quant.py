"""Checkpoints of FP-Quant."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.quantization.collect import CollectedWeights
from baton_worker.quantization.fp_quant import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import SIZES, answers_alike, fp_quant

CASES = {
    "mxfp4": (fp_quant("mxfp4"), {"forward_dtype": "mxfp4", "forward_method": "abs_max"}, "run as"),
    "nvfp4": (fp_quant("nvfp4", 64), {"forward_dtype": "nvfp4", "hadamard_group_size": 64}, "run"),
    "pseudo": (fp_quant("mxfp4", pseudo=True), {"pseudoquantization": True}, ""),
}


@pytest.mark.row("F03.30")
def test_answers_as_the_weights_that_are_meant(
    tmp_path: Path, driver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for name, (method, settings, said) in CASES.items():
        given = {"quant_method": "fp_quant", **settings}
        oracle = quantized_checkpoints.save(
            tmp_path / name, "LlamaForCausalLM", given, method, **SIZES
        )
        with caplog.at_level("INFO"):
            answers_alike(tmp_path / name, oracle, driver)
        assert f"21 quantised weights {said}" in caplog.text or not said
        caplog.clear()


def test_what_cannot_be_read_is_refused() -> None:
    for changes, said in (
        ({"forward_dtype": "mxfp8"}, "in mxfp8 cannot be read"),
        ({"store_master_weights": True}, "training run"),
    ):
        with pytest.raises(ModelError, match=said):
            formats(SimpleNamespace(**changes))
    parts, _ = fp_quant("mxfp4")(torch.randn(8, 64))
    parts["scales"] = parts["scales"][:, :1]
    reading = CollectedWeights(formats(SimpleNamespace()))
    with pytest.raises(ModelError, match="do not fit one another"):
        _ = [pair for name, part in parts.items() for pair in reading(f"a.{name}", part)]
