"""From config to spec."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.models import ARCHITECTURES, resolve
from tests import tiny
from tests.oracles import mixtures
from tests.oracles.checkpoints import MAKERS

assert mixtures, "registers its makers"


def config(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = tiny._COMMON | {"architectures": ["LlamaForCausalLM"]} | changes
    return SimpleNamespace(**values)


def test_unknown_architecture_names_the_closest_and_the_files_to_edit() -> None:
    with pytest.raises(ModelError) as error:
        resolve(config(architectures=["Qwen4ForCausalLM"]))
    for part in ("Qwen4ForCausalLM", "Qwen3ForCausalLM", "models/families/", "tests/tiny.py"):
        assert part in error.value.message


def test_a_config_without_architecture_says_where_to_name_it() -> None:
    with pytest.raises(ModelError, match=r'"architectures".*LlamaForCausalLM.*docs/models\.md'):
        resolve(config(architectures=None))


def test_a_quantised_checkpoint_is_refused_by_the_name_of_its_method() -> None:
    with pytest.raises(ModelError, match="quantised with awq"):
        resolve(config(quantization_config=SimpleNamespace(quant_method="awq")))


def test_a_missing_field_is_named() -> None:
    broken = config()
    del broken.num_attention_heads
    with pytest.raises(ModelError, match="num_attention_heads"):
        resolve(broken)


def test_every_architecture_has_a_tiny_checkpoint() -> None:
    tested = {*tiny.TRAITS, *tiny.SPELLINGS, *MAKERS}
    assert tested >= set(ARCHITECTURES.names())


def test_the_served_length_reaches_the_family() -> None:
    scaling = SimpleNamespace(
        rope_type="longrope",
        original_max_position_embeddings=64,
        short_factor=[1.0, 2.0, 3.0, 4.0],
        long_factor=[2.0, 3.0, 4.0, 5.0],
    )
    c = config(rope_parameters=scaling, head_dim=8)
    for served, expected in ((None, tiny.MAX_LENGTH), (50, 50)):
        (mixer, _), *_ = resolve(c, served).layers
        assert dict(mixer.rope.parameters)["served"] == expected
