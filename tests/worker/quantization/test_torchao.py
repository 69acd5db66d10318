"""Checkpoints of TorchAO in safetensors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.quantization.torchao import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import SIZES, Method, Rounded, answers_alike, by_rows


def float8(block: tuple[int, int] | None) -> Method:
    plain = quantized_checkpoints.fp8(block)

    def method(weight: Any) -> Rounded:
        stored, meant = plain(weight)
        scale = stored["weight_scale"].reshape(1, 1) if block is None else stored["weight_scale"]
        return {"_weight_qdata": stored["weight"], "_weight_scale": scale}, meant

    return method


def int8(shape: tuple[int, ...]) -> Method:
    plain = by_rows("_weight_qdata", "_weight_scale", shape=shape)

    def method(weight: Any) -> Rounded:
        stored, meant = plain(weight)
        zeros = torch.zeros(stored["_weight_scale"].shape, dtype=torch.int8)
        return stored | {"_weight_zero_point": zeros}, meant

    return method


CASES = {
    "Float8WeightOnlyConfig": float8((1, 0)),
    "Float8DynamicActivationFloat8WeightConfig": float8(None),
    "Int8WeightOnlyConfig": int8((-1,)),
    "Int8DynamicActivationInt8WeightConfig": int8((-1, 1)),
    "IntxWeightOnlyConfig": quantized_checkpoints.intx(),
}


@pytest.mark.row("F03.27")
@pytest.mark.parametrize("name", CASES)
def test_answers_as_the_weights_that_are_meant(tmp_path: Path, driver: Any, name: str) -> None:
    given = {"default": {"_type": name, "_version": 2, "_data": {}}}
    settings = {"quant_method": "torchao", "quant_type": given}
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings, CASES[name], **SIZES
    )
    answers_alike(tmp_path, oracle, driver)


def test_tensors_of_one_kernel_are_refused() -> None:
    inner = SimpleNamespace(_type="Int4WeightOnlyConfig")
    with pytest.raises(ModelError, match="Int4WeightOnlyConfig cannot be read"):
        formats(SimpleNamespace(quant_type=SimpleNamespace(default=inner)))
    with pytest.raises(ModelError, match="int4_weight_only cannot be read"):
        formats(SimpleNamespace(quant_type="int4_weight_only"))
