"""Tokenizer settings of a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
