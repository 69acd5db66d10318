"""Checkpoints of EXL3."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.kernels.cpu.trellis_linear import TrellisLinear
from baton_worker.layers.linear import Linear
from baton_worker.quantization.exl3 import formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import answers_alike
from tests.support.trellis_codes import exl3, weight_of

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
"""Rows and columns are whole Hadamard blocks."""


@pytest.mark.row("F03.31")
def test_every_width_and_codebook_means_what_is_computed_one_by_one() -> None:
    given = torch.randn(128, 256)
    for bits in range(1, 9):
        codebook = ("mul1", "mcg", None)[bits % 3]
        parts, meant = exl3(bits, codebook or "3inst")(given)
        weight = weight_of(codebook, parts)
        assert weight.shape == given.shape and weight.nbytes < given.numel() * (bits + 1) / 8
        assert float((weight.dequantise() - meant).abs().max()) < 1e-5, (bits, codebook)
        assert 0.5 < float(meant.std() / given.std()) < 2


@pytest.mark.row("F03.31")
def test_answers_as_the_weights_that_are_meant(
    tmp_path: Path, driver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"quant_method": "exl3", "version": "0.0.6", "bits": 4.0, "codebook": "mcg"}
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings, exl3(4, "mcg"), **SIZES
    )
    with caplog.at_level("WARNING"):
        loaded = answers_alike(tmp_path, oracle, driver)
    assert "dequantised" not in caplog.text
    linear = [layer for layer in loaded.model.layers() if isinstance(layer, Linear)]
    packed = [layer for layer in linear if layer.quantised_as is None and layer.weight is None]
    assert sum(isinstance(layer._kernel, TrellisLinear) for layer in packed) == 8


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(ModelError, match="EXL3's codebook 5inst cannot be read"):
        formats(SimpleNamespace(codebook="5inst"))
    parts, _ = exl3(2)(torch.randn(128, 128))
    for part, wrong in {
        "trellis": parts["trellis"][..., :-1],
        "suh": parts["suh"][:-1],
        "svh": parts["svh"][:-16],
    }.items():
        with pytest.raises(ModelError, match="do not fit one another"):
            weight_of("mul1", parts | {part: wrong})
