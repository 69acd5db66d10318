"""Layers of heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.pooler_head import ACTIVATIONS, Dense

SITE = BuildContext(torch.device("cpu"), torch.float32, lambda role: f"not {role}")


def test_it_fills_from_the_checkpoints_own_names() -> None:
    settings = spec.Dense("head.dense", 3, 2, norm=spec.Norm(1e-5, "layer"), norm_name="head.norm")
    layer = Dense(settings, SITE)
    assert layer.norm is not None
    names = [name for part in (layer.linear, layer.norm) for name, _ in part.weight_targets()]
    assert names == ["head.dense.weight", "head.dense.bias", "head.norm.weight"]


def test_the_norm_comes_last() -> None:
    settings = spec.Dense("a", 3, 2, activation="gelu", norm=spec.Norm(1e-5, "layer"))
    layer = Dense(settings, SITE)
    for parameter in layer.parameters():
        parameter.data.fill_(0.5)
    x = torch.tensor([[1.0, 2.0, -3.0]])
    assert layer.norm is not None
    expected = layer.norm(F.gelu(x @ torch.full((3, 2), 0.5) + 0.5))
    assert torch.allclose(layer(x), expected)


def test_activations_keep_the_shape() -> None:
    for activation in ACTIVATIONS.values():
        assert activation(torch.zeros(2, 3)).shape == (2, 3)


def test_unknown_activation() -> None:
    with pytest.raises(ModelError, match="'exec' is unknown"):
        Dense(spec.Dense("a", 3, 2, activation="exec"), SITE)
