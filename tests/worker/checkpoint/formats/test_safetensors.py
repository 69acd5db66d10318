"""Folders of safetensors: order of reading, and refused folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from baton.errors import ModelError
from baton_worker.checkpoint.formats.safetensors import SafetensorsFolder
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.resolve import resolve
from tests.oracles.checkpoints import asked
from tests.support import tiny_models

Tensors = dict[str, torch.Tensor]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_models.save_checkpoint(tmp_path, "Qwen2ForCausalLM")
    return tmp_path


def refusal(path: Path) -> str:
    folder = SafetensorsFolder(path)
    with pytest.raises(ModelError) as error:
        list(folder.tensors(resolve(folder.config)))
    return error.value.message


@pytest.mark.parametrize("tied", [True, False])
def test_the_larger_layer_that_packs_comes_first(tmp_path: Path, tied: bool) -> None:
    """An embedding table that is the head too is in the first shard, a head of its own the last."""
    tiny_models.save_checkpoint(tmp_path, "Qwen2ForCausalLM", tie_word_embeddings=tied)
    (tmp_path / "model.safetensors").unlink()
    names = {f"part-{number}": f"part-{number}.safetensors" for number in range(3)}
    for name, file in names.items():
        save_file({name: torch.zeros(1)}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    folder = SafetensorsFolder(tmp_path)
    found = [name for name, _ in folder.tensors(resolve(folder.config))]
    assert found == sorted(names, reverse=not tied)


def test_an_index_cannot_leave_its_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../other/model.safetensors"}}))
    assert "outside its folder" in refusal(folder)


def test_a_truncated_file_is_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "cannot be read" in refusal(folder)


def test_a_pointer_of_git_lfs_says_how_to_get_the_file(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "git lfs pull" in refusal(folder)


def test_folders_without_weights_say_what_to_do(folder: Path) -> None:
    weights = folder / "model.safetensors"
    for name, advice in (
        ("pytorch_model.bin", "safetensors and GGUF only"),
        ("adapter_model.safetensors", "serve its base model with --lora-modules"),
        ("model-00001-of-00002.safetensors", "need that index"),
    ):
        weights = weights.rename(folder / name)
        assert advice in refusal(folder)


@pytest.mark.parametrize(
    "text", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 5}}', "[" * 9**5]
)
def test_a_malformed_index_is_one_sentence(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in refusal(folder)


def test_a_config_that_asks_for_a_billion_layers_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))
    with pytest.raises(ModelError, match="num_hidden_layers is 1000000000"):
        SafetensorsFolder(folder)


def another(tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBEDDING].flip(0).contiguous()


def equal(tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBEDDING].clone()


def instead(tensors: Tensors) -> None:
    tensors[HEAD] = tensors.pop(EMBEDDING)


@pytest.mark.parametrize(("change", "tied"), [(another, False), (equal, True), (instead, True)])
def test_a_saved_head_is_read_as_transformers_does(
    change: Callable[[Tensors], None], tied: bool, tmp_path: Path, driver: Any
) -> None:
    tiny_models.save_checkpoint(tmp_path, "Qwen2ForCausalLM", tie_word_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    oracle = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    loaded = load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
    assert loaded.spec.head.tied == tied
    tokens = list(range(5, 25))
    ours = driver(loaded, 1).step({0: tokens})[0]
    assert (ours - asked(oracle)(tokens)).abs().max() < 1e-3
