"""Unlisted architectures: those that run in transformers' code, and those that are refused.

`test_parity.py` tests that the outputs are correct.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from baton.errors import ModelError
from baton_worker.attention import AttentionSpec
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Quantize
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import ARCHITECTURES
from baton_worker.models.transformers_backend import (
    TransformersModel,
    _check_windows,
    load_transformers_model,
    refuses,
)
from baton_worker.spec.hf_config import read_config
from tests.support import tiny_models

CPU = torch.device("cpu")


def load(folder: Path, quantization: Quantize = "none", **options: Any) -> LoadedModel:
    context = BuildContext(CPU, torch.float32, quantization=quantization)
    return load_model(folder, context, **options)


def save(folder: Path, architecture: str, **changes: Any) -> Path:
    """A tiny checkpoint of any class of transformers."""
    model = getattr(transformers, architecture)
    fields = tiny_models._COMMON | {"architectures": [architecture]} | changes
    model(model.config_class(**fields)).save_pretrained(folder)
    return folder


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as error:
        load(folder, **options)
    return error.value.message


def test_enough_architectures_without_a_spec_show_the_fallback() -> None:
    assert len(set(tiny_models.UNLISTED) - set(ARCHITECTURES.names())) >= 10


def test_the_rest_of_the_worker_sees_a_model(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, tiny_models.EXAMPLE_UNLISTED)
    loaded = load(tmp_path)
    assert (
        isinstance(loaded.model, TransformersModel) and loaded.generates and loaded.recipe is None
    )
    assert (loaded.max_length, loaded.vocab_size) == (
        tiny_models.MAX_LENGTH,
        tiny_models.VOCAB_SIZE,
    )
    assert loaded.eos_token_ids == (1,) and loaded.weight_bytes > 0
    assert loaded.model.pooler is None and loaded.model.progress == 0
    assert len(loaded.spec.layers) == 3


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"architectures": ["NobodyForCausalLM"]}, "does not know it either"),
        ({"architectures": ["NobodyForCausalLM"], "auto_map": {"a": "b"}}, "brings its own code"),
        ({"architectures": ["ViTModel"]}, "not as a model that continues text"),
        ({"architectures": ["GPTNeoForCausalLM"]}, "cannot be replaced"),
        ({"architectures": ["JambaForCausalLM"]}, "cannot be replaced"),
        (
            {
                "architectures": [tiny_models.EXAMPLE_UNLISTED],
                "quantization_config": SimpleNamespace(),
            },
            "quantised",
        ),
        (
            {
                "architectures": [tiny_models.EXAMPLE_UNLISTED],
                "rope_parameters": SimpleNamespace(
                    full_attention=SimpleNamespace(rope_type="dynamic")
                ),
            },
            "longest row",
        ),
        (
            {
                "architectures": ["VipLlavaForConditionalGeneration"],
                "text_config": SimpleNamespace(rope_scaling=SimpleNamespace(type="dynamic")),
            },
            "longest row",
        ),
        ({"architectures": [tiny_models.EXAMPLE_UNLISTED]}, None),
    ],
)
def test_reasons_are_known_before_weights_are_read(
    fields: dict[str, Any], reason: str | None
) -> None:
    found = refuses(SimpleNamespace(**fields))
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_the_refusal_names_the_closest_architecture_and_the_files_to_edit(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen4ForCausalLM"]}))
    message = refusal(tmp_path)
    for part in ("Qwen4ForCausalLM", "does not know it", "Qwen3ForCausalLM", "models/families/"):
        assert part in message


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')\nclass OddForCausalLM: ...\n"
    (tmp_path / "modeling_odd.py").write_text(code)
    config = {
        "architectures": ["OddForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_odd.OddForCausalLM"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "brings its own code, which Baton does not run" in refusal(tmp_path)
    assert not marker.exists()


def test_a_model_of_several_parts_serves_its_texts(tmp_path: Path) -> None:
    eyes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = transformers.VideoLlavaConfig(
        text_config=tiny_models._COMMON | {"model_type": "llama"},
        vision_config=eyes | {"num_hidden_layers": 2, "image_size": 12, "patch_size": 4},
        vision_feature_layers=[-2, -1],
        image_token_index=319,
    )
    transformers.VideoLlavaForConditionalGeneration(config).save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded.model, TransformersModel) and len(loaded.spec.layers) == 3
    assert loaded.vocab_size == tiny_models.VOCAB_SIZE


def test_state_outside_of_the_attention_fails_the_trial(tmp_path: Path) -> None:
    """Lfm2 has a spec, but the code of transformers would be tried if it had none."""
    kinds = ["conv", "full_attention", "conv"]
    folder = save(tmp_path, "Lfm2ForCausalLM", layer_types=kinds)
    with pytest.raises(ModelError, match="keeps state outside of its attention"):
        load_transformers_model(folder, read_config(folder), BuildContext(CPU, torch.float32))


def test_a_mask_of_its_own_is_refused(tmp_path: Path) -> None:
    assert "a mask of its own" in refusal(save(tmp_path, "DogeForCausalLM"))


def test_an_error_within_the_code_of_others_becomes_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save_checkpoint(tmp_path, tiny_models.EXAMPLE_UNLISTED)

    def broken(*_: Any, **__: Any) -> None:
        raise IndexError("deep inside")

    code = getattr(transformers, tiny_models.EXAMPLE_UNLISTED)
    monkeypatch.setattr(code, "forward", broken)
    monkeypatch.setattr("baton_worker.models.transformers_backend._generates", lambda _: True)
    assert "failed with IndexError: deep inside" in refusal(tmp_path)
    monkeypatch.setattr(code, "from_pretrained", broken)
    assert refusal(tmp_path).endswith("IndexError: deep inside")


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_tensors_must_fit(tmp_path: Path, change: str) -> None:
    tiny_models.save_checkpoint(tmp_path, tiny_models.EXAMPLE_UNLISTED)
    tensors = load_file(tmp_path / "model.safetensors")
    if change == "missing":
        del tensors["model.layers.1.self_attn.k_proj.weight"]
    else:
        tensors["extra.weight"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert f"{change}_keys" in refusal(tmp_path)


@pytest.mark.parametrize("options", [{"task": "embed"}, {"quantization": "int8"}])
def test_only_a_spec_can_be_embedded_or_quantised(tmp_path: Path, options: dict[str, Any]) -> None:
    tiny_models.save_checkpoint(tmp_path, tiny_models.EXAMPLE_UNLISTED)
    assert "only a spec can be" in refusal(tmp_path, **options)


def call(window: int | None) -> AttentionSpec:
    return AttentionSpec(4, 2, 8, 0.5, window, torch.float32, CPU)


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["sliding_attention", "sliding_attention"]},
        {"layer_types": ["chunked_attention", "full_attention"]},
        {"attention_chunk_size": 64},
    ],
)
def test_a_window_that_only_masks_know_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="a part of the text only"):
        _check_windows(SimpleNamespace(**fields), [call(9), call(None)])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9},
        {"sliding_window": 9},
        {"sliding_window": None},
    ],
)
def test_windows_that_the_calls_show_are_fine(fields: dict[str, Any]) -> None:
    _check_windows(SimpleNamespace(**fields), [call(9), call(None)])


def test_a_window_that_is_switched_off_is_not_missed() -> None:
    _check_windows(SimpleNamespace(sliding_window=9, use_sliding_window=False), [call(None)])
