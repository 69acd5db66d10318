"""Checkpoints that do not fit are refused with the names of the wrong tensors."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from tests.support import tiny_models

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]
KEY = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_models.save_checkpoint(tmp_path, "Qwen2ForCausalLM")
    return tmp_path


def load(path: Path) -> LoadedModel:
    return load_model(path, BuildContext(CPU, torch.float32))


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as error:
        load(path)
    return error.value.message


def test_shards_equal_a_single_file(folder: Path, tmp_path: Path, driver: Any) -> None:
    whole = driver(load(folder), 1).step({0: [3, 4, 5]})[0]
    tensors = sorted(load_file(folder / "model.safetensors").items())
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for number, part in enumerate((tensors[::2], tensors[1::2])):
        save_file(dict(part), folder / f"part-{number}.safetensors")
        weight_map |= dict.fromkeys((name for name, _ in part), f"part-{number}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(driver(load(folder), 1).step({0: [3, 4, 5]})[0], whole)


def test_missing_tensors_are_listed(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop(KEY))
    assert f"missing: {KEY}; not used: none" in refusal(folder)


def test_leftover_tensors_are_listed(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update(extra=torch.zeros(1)))
    assert "missing: none; not used: extra" in refusal(folder)


def test_a_missing_file_is_found_before_anything_is_allocated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_worker.checkpoint.load.empty_model", None)
    (folder / "model.safetensors").rename(folder / "other")
    assert "holds no model.safetensors" in refusal(folder)
    index = {"weight_map": {KEY: "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001-of-00001.safetensors" in refusal(folder)
    for name, said in (("x" * 5000, "Copy it"), ("../x.safetensors", "outside its folder")):
        index = {"weight_map": {KEY: name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert said in refusal(folder)


def test_names_with_a_prefix_say_which(folder: Path) -> None:
    def prefix(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[f"base_model.model.{name}"] = tensors.pop(name)

    rewrite(folder, prefix)
    assert "Save it again without the 'base_model.model.'" in refusal(folder)


def test_long_lists_are_cut(folder: Path) -> None:
    rewrite(folder, dict.clear)
    message = refusal(folder)
    assert "more; not used: none" in message and len(message) < 1000


def test_a_wrong_shape_is_named(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({KEY: torch.zeros(3, 5)}))
    assert f"{KEY} is [3, 5]" in refusal(folder)


def test_quantised_tensors_are_refused(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({KEY: t[KEY].to(torch.int8)}))
    assert "torch.int8" in refusal(folder)


def test_what_readers_recompute_may_be_there(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    table = "model.embed_tokens.weight"
    rewrite(folder, lambda t: t.update({name: torch.zeros(4), "lm_head.weight": t[table].clone()}))
    assert load(folder).spec.head.tied


def test_checkpoint_dtype_is_converted(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({k: v.bfloat16() for k, v in t.items()}))
    assert load(folder).model.norm.weight.dtype is torch.float32


def test_a_weight_is_let_go_when_its_layer_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model would need its size twice while it loads."""
    finish, replaced = Linear.process_weights_after_loading, list[bool]()

    def watched(layer: Linear) -> None:
        before = weakref.ref(layer.weight)
        finish(layer)
        if layer.weight is None:
            replaced.append(before() is None)

    monkeypatch.setattr(Linear, "process_weights_after_loading", watched)
    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM")
    loaded = load(tmp_path)
    if all(layer.weight is not None for layer in linears(loaded)):
        pytest.skip("no kernel of this machine replaces weights")
    assert replaced and all(replaced)


def linears(loaded: LoadedModel) -> list[Linear]:
    return [module for module in loaded.model.modules() if isinstance(module, Linear)]
