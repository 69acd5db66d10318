"""Fused checkpoint tensors are split into the tensors that the layers name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.unfuse import Unfuse
from baton_worker.spec import (
    Decoder,
    Fused,
    Head,
    Norm,
)

QKV = ("query", "key", "value")
STEM = "model.layers.1.self_attn"


def spec(*fused: Fused, **names: str) -> Decoder:
    none: Any = (None, None)
    return Decoder(8, 16, (none, none), Norm(1e-5), Head(), fused=fused, names=tuple(names.items()))


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
