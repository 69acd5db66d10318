"""From config to spec."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.models import ARCHITECTURES, resolve
from tests import tiny


def config(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = tiny._COMMON | {"architectures": ["LlamaForCausalLM"]} | changes
    return SimpleNamespace(**values)


def test_unknown_architecture_names_the_closest_and_the_files_to_edit() -> None:
    with pytest.raises(ModelError) as error:
        resolve(config(architectures=["Qwen4ForCausalLM"]))
    for part in ("Qwen4ForCausalLM", "Qwen3ForCausalLM", "models/families/", "tests/tiny.py"):
        assert part in error.value.message


def test_a_config_without_architecture_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="LlamaForCausalLM, MistralForCausalLM"):
        resolve(config(architectures=None))


def test_a_quantised_checkpoint_is_refused_by_the_name_of_its_method() -> None:
    with pytest.raises(ModelError, match="quantised with awq"):
        resolve(config(quantization_config=SimpleNamespace(quant_method="awq")))


def test_a_missing_field_is_named() -> None:
    broken = config()
    del broken.num_attention_heads
    with pytest.raises(ModelError, match="num_attention_heads"):
        resolve(broken)


def test_every_architecture_has_a_tiny_config() -> None:
    assert set(tiny.TRAITS) == set(ARCHITECTURES.names())
