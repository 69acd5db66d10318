"""Blocks of every kind as a checkpoint of ours stores them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from baton.errors import ModelError
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.quantized_weights import BlockQuantized
from baton_worker.quantization.blocks import formats, scheme, settings, stored
from baton_worker.quantization.collect import CollectedWeights
from tests.support.worker.random_products import some_blocks


def given(**fields: object) -> SimpleNamespace:
    fields["kinds"] = SimpleNamespace(**fields["kinds"])  # type: ignore[arg-type]
    return SimpleNamespace(**fields)


def test_every_kind_comes_back_as_it_was() -> None:
    for kind in KINDS:
        blocks = some_blocks(kind, 8, 512)
        name = "model.layers.3.mlp.up_proj.weight"
        reading = CollectedWeights(formats(given(**settings("int8", {name: kind}))))
        found = [pair for one in stored(name, blocks) for pair in reading(*one)]
        reading.end()
        [(back, weight)] = found
        assert back == name and not isinstance(weight, torch.Tensor)
        assert torch.equal(weight.dequantise(), blocks.dequantise()), kind


def test_codes_that_are_whole_bytes_are_read_too() -> None:
    blocks = some_blocks("int6_super", 8, 512)
    reading = CollectedWeights(formats(given(kinds={"a": "int6_super"})))
    parts = {f"a.weight.{field}": part for field, part in blocks.parts()}
    [(_, weight)] = [pair for name, part in parts.items() for pair in reading(name, part)]
    assert isinstance(weight, BlockQuantized) and torch.equal(weight.codes, blocks.codes)


def test_modules_are_named_by_pattern_unless_they_differ() -> None:
    kinds = {f"layers.{n}.mlp.experts.{e}.up.weight": "int8" for n in range(3) for e in range(4)}
    kinds["layers.2.mlp.experts.1.up.weight"] = "int4_minimum"
    named = settings("int4", kinds)["kinds"]
    assert named == {
        "layers.*.mlp.experts.*.up": "int8",
        "layers.2.mlp.experts.1.up": "int4_minimum",
    }
    of = formats(given(kinds=named))
    assert of("layers.2.mlp.experts.1.up") != of("layers.2.mlp.experts.2.up")
    assert of("layers.2.mlp.experts.2.up") == of("layers.0.mlp.experts.0.up")
    assert of("layers.0.norm") is None


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(ModelError, match="of the kind int99, which this version"):
        formats(given(kinds={"a": "int99"}))
    reading = CollectedWeights(formats(given(kinds={"a": "int8"})))
    parts = {
        "a.weight.codes": torch.zeros(4, 64, dtype=torch.int8),
        "a.weight.scales": torch.ones(4, 1),
    }
    with pytest.raises(ModelError, match="do not fit one another"):
        _ = [pair for name, part in parts.items() for pair in reading(name, part)]


def test_only_ours_say_what_the_rest_is_rounded_to() -> None:
    ours = SimpleNamespace(quant_method="baton", scheme="int4")
    assert scheme(SimpleNamespace(quantization_config=ours)) == "int4"
    other = SimpleNamespace(quant_method="gptq", scheme="int4")
    assert scheme(SimpleNamespace(quantization_config=other)) == "none"
    assert scheme(SimpleNamespace()) == "none"
