"""Checkpoints of EXL3."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.quantization.collect import CollectedWeights
from baton_worker.quantization.exl3 import Exl3Weight, formats
from tests.support import quantized_checkpoints
from tests.support.quantized_checkpoints import answers_alike
from tests.support.trellis_codes import exl3

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
"""Rows and columns are whole Hadamard blocks."""


def read(codebook: str | None, parts: dict[str, torch.Tensor]) -> Exl3Weight:
    given = SimpleNamespace() if codebook is None else SimpleNamespace(codebook=codebook)
    reading = CollectedWeights(formats(given))
    found = [pair for name, part in parts.items() for pair in reading(f"a.{name}", part)]
    reading.end()
    [(name, weight)] = found
    assert name == "a.weight" and isinstance(weight, Exl3Weight)
    return weight


@pytest.mark.row("F03.31")
def test_every_width_and_codebook_means_what_is_computed_one_by_one() -> None:
    given = torch.randn(128, 256)
    for bits in range(1, 9):
        codebook = ("mul1", "mcg", None)[bits % 3]
        parts, meant = exl3(bits, codebook or "3inst")(given)
        weight = read(codebook, parts)
        assert weight.shape == given.shape and weight.nbytes < given.numel() * (bits + 1) / 8
        assert float((weight.dequantise() - meant).abs().max()) < 1e-5, (bits, codebook)
        assert 0.5 < float(meant.std() / given.std()) < 2


@pytest.mark.row("F03.31")
def test_parts_of_a_weight() -> None:
    parts, meant = exl3(3, left="su", right="sv")(torch.randn(256, 256))
    weight = read("mul1", parts)
    assert torch.allclose(weight.dequantise(), meant, atol=1e-5)
    some = torch.tensor([200, 3, 130])
    for rows in (slice(100, 140), some):
        assert torch.allclose(weight[rows].dequantise(), meant[rows], atol=1e-5)
    assert torch.allclose(weight[some][1:].dequantise(), meant[some[1:]], atol=1e-5)
    wide = weight[250:].padded(2).to(torch.device("cpu"))
    assert wide.shape == (8, 256) and not wide.dequantise()[6:].any()
    # A part of the columns is rotated by itself.
    assert torch.allclose(weight.columns(128, 128).dequantise(), meant[:, 128:], atol=1e-5)
    assert weight.column_multiple == 128 and weight.blocks() is None


@pytest.mark.row("F03.31")
def test_answers_as_the_weights_that_are_meant(
    tmp_path: Path, driver: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"quant_method": "exl3", "version": "0.0.6", "bits": 4.0, "codebook": "mcg"}
    oracle = quantized_checkpoints.save(
        tmp_path, "LlamaForCausalLM", settings, exl3(4, "mcg"), **SIZES
    )
    with caplog.at_level("WARNING"):
        answers_alike(tmp_path, oracle, driver)
    assert "14 quantised weights are dequantised" in caplog.text


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
            read("mul1", parts | {part: wrong})


def test_floats_of_a_trellis_may_be_rounded_again(tmp_path: Path, driver: Any) -> None:
    """No kernel keeps a trellis packed, but eight bits of what it means stay packed."""
    settings = {"quant_method": "exl3", "codebook": "mul1"}
    quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, exl3(2), **SIZES)
    plain = BuildContext(quantized_checkpoints.CPU, torch.float32)
    floats, rounded = (
        load_model(tmp_path, replace(plain, quantization=q)) for q in ("none", "int8")
    )
    assert rounded.weight_bytes < 0.5 * floats.weight_bytes
    first, second = (driver(m, 1).step({0: [5, 6, 7]})[0] for m in (floats, rounded))
    assert 0 < float((first - second).norm() / first.norm()) < 0.05
