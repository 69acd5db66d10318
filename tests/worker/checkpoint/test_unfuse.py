"""Fused checkpoint tensors are split into the tensors that the layers name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.unfuse import Unfuse
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.layers.linear import LanguageHead, Linear
from baton_worker.spec import (
    Decoder,
    Fused,
    Head,
    Norm,
    TensorLayout,
)
from tests.support import quantized_checkpoints
from tests.support.worker.quantized_weights import WEIGHTS

QKV = ("query", "key", "value")
STEM = "model.layers.1.self_attn"


def spec(*fused: Fused, **names: str) -> Decoder:
    none: Any = (None, None)
    tensors = TensorLayout(fused=fused, names=tuple(names.items()))
    return Decoder(8, 16, (none, none), Norm(1e-5), Head(), tensors=tensors)


def wanted(query: int, key: int) -> dict[str, torch.Tensor]:
    sizes = {"q": query, "k": key, "v": key}
    return {
        f"{STEM}.{part}_proj.{kind}": torch.empty(rows, *width)
        for part, rows in sizes.items()
        for kind, width in (("weight", (3,)), ("bias", ()))
    }


def test_parts_lie_one_after_the_other() -> None:
    unfuse = Unfuse(spec(Fused("model.layers.{layer}.qkv", QKV)), wanted(4, 2))
    stored = torch.arange(24.0).view(8, 3)
    parts = dict(unfuse("model.layers.1.qkv.weight", stored))
    assert list(parts) == [f"{STEM}.{part}_proj.weight" for part in "qkv"]
    assert torch.equal(torch.cat(list(parts.values())), stored)
    bias = dict(unfuse("model.layers.1.qkv.bias", torch.arange(8.0)))
    assert bias[f"{STEM}.v_proj.bias"].tolist() == [6.0, 7.0]


def test_parts_alternate_group_by_group() -> None:
    """Two groups of two query rows, one key row and one value row: q q k v q q k v."""
    unfuse = Unfuse(spec(Fused("qkv.{layer}", QKV, groups=2)), wanted(4, 2))
    parts = dict(unfuse("qkv.1.bias", torch.arange(8.0)))
    assert [part.tolist() for part in parts.values()] == [[0, 1, 4, 5], [2, 6], [3, 7]]


def test_transposed_weights_are_turned_but_biases_are_not() -> None:
    unfuse = Unfuse(spec(Fused("qkv.{layer}", QKV, transposed=True)), wanted(4, 2))
    stored = torch.arange(24.0).view(3, 8)
    parts = dict(unfuse("qkv.1.weight", stored))
    assert torch.equal(parts[f"{STEM}.k_proj.weight"], stored[:, 4:6].T)
    assert len(dict(unfuse("qkv.1.bias", torch.zeros(8)))) == 3


@pytest.mark.parametrize("groups", [1, 2])
def test_quantised_weights_come_apart_as_they_are_stored(groups: int) -> None:
    unfuse = Unfuse(spec(Fused("qkv.{layer}", QKV, groups=groups)), wanted(16, 4))
    for name, make in WEIGHTS.items():
        weight = make()
        parts = dict(unfuse("qkv.1.weight", weight))
        floats = dict(unfuse("qkv.1.weight", weight.dequantise()))
        assert parts.keys() == floats.keys()
        for part, expected in floats.items():
            found = parts[part]
            assert not isinstance(found, torch.Tensor) and found.shape == expected.shape
            assert torch.equal(found.dequantise(), expected), name


def test_what_is_quantised_along_the_other_axis_becomes_floats() -> None:
    unfuse = Unfuse(spec(Fused("qkv.{layer}", QKV, transposed=True)), wanted(256, 128))
    weight = WEIGHTS["fp8"]()
    parts = dict(unfuse("qkv.1.weight", weight))
    assert torch.equal(parts[f"{STEM}.k_proj.weight"], weight.dequantise().T[256:384])


def test_a_fused_checkpoint_runs_packed(tmp_path: Path, driver: Any) -> None:
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here")
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    oracle = quantized_checkpoints.save(
        tmp_path,
        "Phi3ForCausalLM",
        settings,
        quantized_checkpoints.gptq(symmetric=False),
        **quantized_checkpoints.SIZES,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    loaded = quantized_checkpoints.answers_alike(tmp_path, oracle, driver)
    packed = [m for m in loaded.model.modules() if isinstance(m, Linear)]
    floats = sum(p.numel() for n, p in oracle.named_parameters() if n.endswith("_proj.weight"))
    held = sum(layer.weight_bytes for layer in packed if not isinstance(layer, LanguageHead))
    assert 4.75 <= held * 8 / floats < 5.5


def test_a_tensor_of_another_height_is_an_error() -> None:
    unfuse = Unfuse(spec(Fused("qkv.{layer}", QKV)), wanted(4, 2))
    with pytest.raises(ModelError, match=r"qkv\.1\.weight has 9 rows .* 4 \+ 2 \+ 2"):
        list(unfuse("qkv.1.weight", torch.zeros(9, 3)))


def test_what_no_layer_wants_passes_and_is_left_over() -> None:
    unfuse = Unfuse(spec(Fused("qkv.{layer}", QKV)), {})
    assert [name for name, _ in unfuse("qkv.1.weight", torch.zeros(8, 3))] == ["qkv.1.weight"]


def test_a_body_saved_alone_lacks_its_first_name() -> None:
    names = {"embedding": "transformer.wte", "norm": "transformer.ln_f"}
    unfuse = Unfuse(spec(**names), {"transformer.ln_f.weight": torch.empty(8)})
    assert [name for name, _ in unfuse("ln_f.weight", torch.zeros(8))] == [
        "transformer.ln_f.weight"
    ]
    assert [name for name, _ in unfuse("other.weight", torch.zeros(8))] == ["other.weight"]
