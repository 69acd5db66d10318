"""Layers in configs of Step."""

from __future__ import annotations

from types import SimpleNamespace

from baton_worker.models.families.step import sparse_layers


def test_which_layers_have_experts() -> None:
    c = SimpleNamespace(num_hidden_layers=4)
    assert sparse_layers(c, 1) == [False, True, True, True]
    c.moe_layers_enum = "1, 3"
    assert sparse_layers(c, 1) == [False, True, False, True]
    c.moe_layers_enum = [2]
    assert sparse_layers(c, 1) == [False, False, True, False]
    c.mlp_layer_types = ["sparse", "dense", "dense", "sparse", "sparse"]
    assert sparse_layers(c, 1) == [True, False, False, True]
