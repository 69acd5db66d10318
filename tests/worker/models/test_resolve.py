"""From config to spec."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import ARCHITECTURES, resolve
from tests.oracles import mixtures, ropes
from tests.oracles.audio import heard
from tests.oracles.checkpoints import MAKERS
from tests.oracles.towers.sights import makers
from tests.support import tiny_audio, tiny_models, tiny_towers

assert mixtures and ropes, "they register their makers"


def config(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = tiny_models._COMMON | {"architectures": ["LlamaForCausalLM"]} | changes
    return SimpleNamespace(**values)


def test_unknown_architecture_names_the_closest_and_the_files_to_edit() -> None:
    with pytest.raises(ModelError) as error:
        resolve(config(architectures=["Qwen4ForCausalLM"]))
    for part in (
        "Qwen4ForCausalLM",
        "Qwen3ForCausalLM",
        "models/families/",
        "tests/support/tiny_models.py",
    ):
        assert part in error.value.message


def refusal(folder: Path, **config: Any) -> str:
    """What the worker says of a checkpoint."""
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as error:
        load_model(folder, BuildContext(torch.device("cpu"), torch.float32))
    return error.value.message


@pytest.mark.row("P15", refuses=True)
def test_a_model_of_a_package_that_is_absent_names_the_package(tmp_path: Path) -> None:
    fields = {"model_type": "terratorch", "pretrained_cfg": {}}
    assert refusal(tmp_path, architectures=["Terratorch"], **fields) == (
        "Terratorch wraps the models of the package terratorch, which is not installed here, and "
        "Baton cannot run them without it. Serve another checkpoint."
    )


def test_a_package_that_is_there_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("baton_worker.models.resolve")  # The package has a function of its name.
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    with pytest.raises(ModelError, match=r"terratorch\. It is installed, but nothing in Baton"):
        resolve(config(architectures=["Terratorch"]))


def test_a_config_without_architecture_says_where_to_name_it() -> None:
    with pytest.raises(
        ModelError, match=r'"architectures".*LlamaForCausalLM.*docs/models/supported\.md'
    ):
        resolve(config(architectures=None))


def test_a_quantised_checkpoint_is_refused_by_the_name_of_its_method() -> None:
    with pytest.raises(ModelError, match="quantised with hqq"):
        resolve(config(quantization_config=SimpleNamespace(quant_method="hqq")))


def test_mxfp4_is_for_those_whose_spec_says_where_it_is() -> None:
    with pytest.raises(ModelError, match=r"quantised with mxfp4, .* in LlamaForCausalLM"):
        resolve(config(quantization_config=SimpleNamespace(quant_method="mxfp4")))


def test_a_missing_field_is_named() -> None:
    broken = config()
    del broken.num_attention_heads
    with pytest.raises(ModelError, match="num_attention_heads"):
        resolve(broken)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_position_embeddings": None}, "must be a number, not None"),
        ({"rms_norm_eps": "x"}, "must be a number, not 'x'"),
        ({"rope_scaling": "linear"}, "must be objects"),
        ({"rope_theta": "x"}, "cannot be read: could not convert"),
        ({"num_attention_heads": 0}, r"by zero \(num_attention_heads is 0\)"),
        ({"intermediate_size": [80, 80, 80]}, "must be an integer in each layer"),
    ],
)
def test_fields_of_another_type_are_one_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        resolve(config(**fields))


def test_every_architecture_has_a_tiny_checkpoint() -> None:
    texts = {*tiny_models.TRAITS, *tiny_models.RELATIVES, *tiny_models.SPELLINGS, *MAKERS}
    towers = {*tiny_towers.ARCHITECTURES, *makers(), *tiny_audio.makers(), *heard.makers()}
    assert texts | towers >= set(ARCHITECTURES.names())


def test_the_served_length_reaches_the_family() -> None:
    scaling = SimpleNamespace(
        rope_type="longrope",
        original_max_position_embeddings=64,
        short_factor=[1.0, 2.0, 3.0, 4.0],
        long_factor=[2.0, 3.0, 4.0, 5.0],
    )
    c = config(rope_parameters=scaling, head_dim=8)
    for served, expected in ((None, tiny_models.MAX_LENGTH), (50, 50)):
        (mixer, _), *_ = resolve(c, served).layers
        assert dict(mixer.rope.parameters)["served"] == expected
