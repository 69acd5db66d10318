"""Checkpoints in the layout of Marlin, under each name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.quantization.collect import CollectedWeights
from baton_worker.quantization.marlin import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import SIZES, answers_alike, marlin

NAMES: list[dict[str, Any]] = [
    {"quant_method": "marlin", "group_size": 32},
    {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "marlin"},
    {"quant_method": "gptq_marlin", "bits": 4, "group_size": 64, "is_marlin_format": True},
]


@pytest.mark.row("F03.07", "F03.11")
def test_answers_as_the_weights_that_are_meant(
    tmp_path: Path, driver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for at, settings in enumerate(NAMES):
        folder, method = tmp_path / str(at), marlin(settings["group_size"])
        sizes = SIZES | {"num_key_value_heads": 4}
        oracle = quantized_checkpoints.save(folder, "LlamaForCausalLM", settings, method, **sizes)
        with caplog.at_level("INFO"):
            answers_alike(folder, oracle, driver)
        assert "21 quantised weights run as packed as they are" in caplog.text
        caplog.clear()


def test_what_cannot_be_read_is_refused() -> None:
    for changes in ({"bits": 8}, {"desc_act": True}):
        with pytest.raises(ModelError, match="4 bits without act-order"):
            formats(SimpleNamespace(**changes))
    parts, _ = marlin()(torch.randn(64, 64))
    reading = CollectedWeights(formats(SimpleNamespace()))
    assert not [*reading("a.s", parts["s"])]
    with pytest.raises(ModelError, match="do not fit one another"):
        _ = [*reading("a.B", parts["B"][:, :100])]
