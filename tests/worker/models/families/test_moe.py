"""Configs of mixtures of experts."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_worker.spec import (
    Glu,
    Moe,
)
from tests.support.moe_configs import kinds, spec


def test_a_config_without_experts_is_refused() -> None:
    with pytest.raises(ModelError, match="lacks a field: num_experts"):
        spec("Qwen3MoeForCausalLM", num_experts=None)


def test_sparse_steps_and_dense_layers() -> None:
    decoder = spec("Qwen3MoeForCausalLM", decoder_sparse_step=2, mlp_only_layers=[3])
    assert kinds(decoder) == [Glu, Moe, Glu, Glu]
    decoder = spec("Glm4MoeForCausalLM", n_shared_experts=1, first_k_dense_replace=2)
    assert kinds(decoder) == [Glu, Glu, Moe, Moe]


def test_an_interval_of_layers() -> None:
    decoder = spec(
        "Ernie4_5_MoeForCausalLM",
        moe_num_shared_experts=0,
        moe_layer_start_index=1,
        moe_layer_end_index=-1,
        moe_layer_interval=2,
    )
    assert kinds(decoder) == [Glu, Moe, Glu, Moe]


def test_afmoe_weighs_as_its_config_says() -> None:
    _, ffn = spec("AfmoeForCausalLM", route_scale=2.5).layers[-1]
    assert isinstance(ffn, Moe) and ffn.shared == Glu(48)
    assert (ffn.router.norm, ffn.router.scale) == (1.0, 2.5)
    plain = spec("AfmoeForCausalLM", num_shared_experts=0, route_norm=False)
    _, ffn = plain.layers[-1]
    assert isinstance(ffn, Moe) and ffn.shared is None and ffn.router.norm is None
    assert plain.embedding.scale == 1.0 and plain.layers[0][1] == Glu(80)
