"""Fields of a config have one JSON type each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec.config_kinds import KINDS, check_kind
from baton_worker.spec.config_limits import BOUNDS


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
