"""Tokenizer settings of a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.errors import ModelError, SettingsError
from baton_tokenizer.vocabulary.formats.checkpoint_folder import Folder, entry


def written(path: Path, **files: Any) -> Folder:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return Folder(path)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tokenizer_class": "LlamaTokenizerFast"}, "LlamaTokenizer"),
        (
            {"auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}},
            "QWenTokenizer",
        ),
        ({}, ""),
    ],
)
def test_the_class_of_transformers(settings: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert written(tmp_path, tokenizer_config=settings).tokenizer_class == expected


def test_added_tokens_of_both_files(tmp_path: Path) -> None:
    decoder = {"7": {"content": "<a>", "special": True, "lstrip": True}}
    folder = written(
        tmp_path,
        tokenizer_config={"added_tokens_decoder": decoder, "eos_token": "<b>"},
        added_tokens={"<a>": 7, "<b>": 5, "<c>": 6},
    )
    expected = [
        entry(5, "<b>", special=True),
        entry(6, "<c>"),
        entry(7, "<a>", special=True, lstrip=True),
    ]
    assert folder.added_tokens == expected


def test_defaults_give_way_to_the_folder(tmp_path: Path) -> None:
    folder = written(tmp_path, tokenizer_config={"eos_token": "b"})
    spec = {"added_tokens": [entry(3, "b")], "model": {"vocab": {"a": 0}}}
    source = folder.source(spec, {"eos_token": "a", "bos_token": "a"})
    assert source.named == {"eos_token": "b", "bos_token": "a"} and source.eos_ids == (3,)


def test_image_tokens_that_a_config_implies(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"added_tokens": [], "model": {"vocab": {}}}
    for config, token in (
        ({"model_type": "kanana-1.5-v", "text_config": {"eos_token_id": 7}}, 8),
        ({"model_type": "nemotron_parse", "decoder": {"eos_token_id": 2}}, 2),
        ({"img_start_id": 9}, 9),
        ({"img_start_id": 9, "image_token_id": 6}, 6),
    ):
        folder = written(tmp_path, config=config | {"vision_config": {}})
        source = folder.source(spec)
        assert source.placeholder_ids == {"image": token} and source.media_ids == (token,)


def test_templates_of_a_list_have_names_and_ends_are_ids(tmp_path: Path) -> None:
    folder = written(tmp_path, tokenizer_config={"chat_template": [{"template": "x"}]})
    with pytest.raises(SettingsError, match="needs a name and a template"):
        folder.source({"added_tokens": [], "model": {}})
    folder = written(tmp_path, tokenizer_config={}, generation_config={"eos_token_id": [[]]})
    with pytest.raises(ModelError, match="eos_token_id must be a token id or a list of them"):
        folder.source({"added_tokens": [], "model": {}})
