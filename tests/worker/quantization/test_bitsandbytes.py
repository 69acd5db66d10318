"""Checkpoints of bitsandbytes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.layers.linear import Linear
from baton_worker.quantization.bitsandbytes import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import SIZES, answers_alike, by_rows, four_bits

FOUR: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
CASES = {
    "nf4": (FOUR | {"bnb_4bit_quant_type": "nf4"}, four_bits("nf4")),
    "fp4": (FOUR | {"bnb_4bit_quant_type": "fp4"}, four_bits("fp4", block=128)),
    "nested": (
        FOUR | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        four_bits("nf4", nested=True),
    ),
    "int8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        by_rows("weight", "SCB", most=127.0),
    ),
}


@pytest.mark.parametrize(
    ("case", "packed"),
    [
        pytest.param("nf4", True, marks=pytest.mark.row("F03.12")),
        ("fp4", True),
        pytest.param("nested", True, marks=pytest.mark.row("F03.12")),
        pytest.param("int8", True, marks=pytest.mark.row("F03.13")),
    ],
)
def test_answers_as_the_weights_that_are_meant(
    tmp_path: Path, driver: Any, case: str, packed: bool
) -> None:
    settings, method = CASES[case]
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **SIZES)
    loaded = answers_alike(tmp_path, oracle, driver)
    layers = [layer for layer in loaded.model.layers() if isinstance(layer, Linear)]
    assert sum(layer.weight is None for layer in layers) >= 8, "projections stay packed"


def test_rows_that_blocks_cross_become_floats(tmp_path: Path, driver: Any) -> None:
    sizes = SIZES | {"intermediate_size": 96}
    settings, method = CASES["nf4"]
    oracle = quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **sizes)
    answers_alike(tmp_path, oracle, driver)


def test_other_types_are_refused() -> None:
    with pytest.raises(ModelError, match="af4 cannot be read"):
        formats(SimpleNamespace(load_in_4bit=True, bnb_4bit_quant_type="af4"))
