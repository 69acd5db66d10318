"""Sizes of strangers' files are bounded before anything is allocated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec.config_limits import BOUNDS, KINDS, check_kind, check_sizes, suspects

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; a model has between 1"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"vocab_size": -5}, "vocab_size is -5"),
    ({"hidden_size": "64"}, "hidden_size must be an integer, not '64'"),
    ({"num_attention_heads": True}, "must be an integer"),
    ({"num_key_value_heads": [4, 4, 10**7]}, "num_key_value_heads is 10000000"),
    (
        {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 6},
        "6 of 8 experts cannot be chosen in 2 of 4 groups",
    ),
    ({"num_experts": 8, "n_group": 3}, "in 1 of 3 groups"),
    ({"text_config": SimpleNamespace(num_experts=2**40)}, "config.json, text_config: num_exp"),
    ({"head_dim": SimpleNamespace()}, "head_dim must be an integer, not an object"),
    ({"hidden_act": ["silu"]}, "hidden_act must be a string, not a list"),
]


def test_a_size_out_of_bounds_is_one_sentence() -> None:
    for fields, said in WRONG:
        with pytest.raises(ModelError, match=said):
            check_sizes(SimpleNamespace(**fields))


def test_sizes_that_may_be_at_fault() -> None:
    config = SimpleNamespace(
        head_dim=None, hidden_size=8, hidden_act=None, text_config=SimpleNamespace(num_experts=0)
    )
    assert suspects(config) == ["head_dim is null", "num_experts is 0"]


def test_sizes_of_published_models_pass() -> None:
    check_sizes(
        SimpleNamespace(
            num_hidden_layers=126,
            hidden_size=16384,
            vocab_size=256_000,
            num_experts=0,
            num_key_value_heads=[8, 0, 8],
            max_position_embeddings=10_485_760,
            head_dim=None,
        )
    )


def test_a_field_of_another_type_is_named_with_what_it_must_be() -> None:
    wrong: list[tuple[str, Any, str]] = [
        ("hidden_act", ["silu"], "a string, not a list"),
        ("image_token_id", True, "an integer, not 'True'"),
        ("rms_norm_eps", "x", "a number, not 'x'"),
        ("attention_bias", "true", "true or false, not 'true'"),
        ("layer_types", SimpleNamespace(), "a list, not an object"),
        ("rope_scaling", "linear", "an object, not 'linear'"),
    ]
    for name, value, said in wrong:
        with pytest.raises(ModelError, match=f"config.json: {name} must be {said}"):
            check_kind(name, value, "config.json")
    for name, value in {"hidden_act": None, "unknown": [], "attention_bias": 1}.items():
        check_kind(name, value, "config.json")
    assert not KINDS.keys() & BOUNDS.keys()
