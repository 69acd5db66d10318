"""The files of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.errors import ModelError
from baton_worker.pooling.sentence import read_sentence_files
from tests.support import tiny_encoders


def test_none_without_modules(tmp_path: Path) -> None:
    assert read_sentence_files(tmp_path) is None
    assert read_sentence_files(tmp_path / "model.gguf") is None


@pytest.mark.parametrize(
    ("mode", "take"),
    [
        ("mean_tokens", "mean"),
        ("cls_token", "first"),
        ("lasttoken", "last"),
        ("max_tokens", "max"),
    ],
)
def test_pooling_modes(tmp_path: Path, mode: str, take: str) -> None:
    tiny_encoders.save_sentence_files(tmp_path, mode, normalize=False, max_length=7)
    files = read_sentence_files(tmp_path)
    assert files is not None
    assert (files.take, files.normalize, files.max_length, files.dense) == (take, False, 7, ())


def test_newer_files_name_the_mode(tmp_path: Path) -> None:
    tiny_encoders.save_sentence_files(tmp_path)
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode": "lasttoken"}')
    files = read_sentence_files(tmp_path)
    assert files is not None and files.take == "last"


def test_a_dense_module_and_its_weights(tmp_path: Path) -> None:
    tiny_encoders.save_sentence_files(tmp_path)
    layer = tiny_encoders.save_dense(tmp_path, 6, 4)
    files = read_sentence_files(tmp_path)
    assert files is not None and files.normalize
    [dense] = files.dense
    assert (dense.name, dense.inputs, dense.outputs) == ("2_Dense.linear", 6, 4)
    assert dense.activation == "tanh"
    tensors = dict(files.tensors())
    assert set(tensors) == {"2_Dense.linear.weight", "2_Dense.linear.bias"}
    assert (tensors["2_Dense.linear.weight"] == layer.weight).all()


@pytest.mark.parametrize(
    ("pooling", "what"),
    [
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "exactly one"),
        ({}, "none"),
    ],
)
def test_modes_that_are_not_supported(tmp_path: Path, pooling: dict[str, bool], what: str) -> None:
    tiny_encoders.save_sentence_files(tmp_path)
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(pooling))
    with pytest.raises(ModelError, match=what):
        read_sentence_files(tmp_path)


def modules(*parts: tuple[str, str]) -> str:
    return json.dumps([{"path": path, "type": f"a.b.{kind}"} for path, kind in parts])


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (modules(("", "Transformer"), ("1", "WordWeights")), "WordWeights"),
        (modules(("", "Transformer"), ("2", "Normalize"), ("1", "Pooling")), "in this order"),
        (modules(("", "Transformer"), ("../up", "Pooling")), "outside"),
        (modules(("", "Transformer"), ("/etc", "Pooling")), "outside"),
        ("[", "not valid JSON"),
        ("[1, 2]", "that it cannot have"),
    ],
)
def test_modules_that_are_not_supported(tmp_path: Path, content: str, what: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ModelError, match=what):
        read_sentence_files(tmp_path)


def test_an_activation_is_a_name_and_nothing_more(tmp_path: Path) -> None:
    tiny_encoders.save_sentence_files(tmp_path)
    tiny_encoders.save_dense(tmp_path, 6, 4)
    path = tmp_path / "2_Dense/config.json"
    path.write_text(path.read_text().replace("torch.nn.modules.activation.Tanh", "os.system"))
    with pytest.raises(ModelError, match=r"os\.system"):
        read_sentence_files(tmp_path)
