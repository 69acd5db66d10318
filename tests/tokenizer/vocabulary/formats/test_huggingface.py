"""Folders with a tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.errors import ModelError
from baton_tokenizer.vocabulary.formats.huggingface import HuggingFace
from tests.fakes.vocabularies import byte_spec


def test_the_file_is_taken_as_it_is(tmp_path: Path) -> None:
    assert not HuggingFace.fits(tmp_path)
    spec = byte_spec()
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert HuggingFace.fits(tmp_path) and HuggingFace.read(tmp_path).spec == json.loads(
        json.dumps(spec)
    )


def test_no_added_tokens_are_none(tmp_path: Path) -> None:
    spec = {name: part for name, part in byte_spec().items() if name != "added_tokens"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert HuggingFace.read(tmp_path).spec["added_tokens"] == []


@pytest.mark.parametrize(
    "part", [{"model": None}, {"added_tokens": [{"content": ["<s>"], "id": 0}]}]
)
def test_a_file_of_another_form_is_refused(part: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({**byte_spec(), **part}))
    with pytest.raises(ModelError, match="Save the tokenizer again"):
        HuggingFace.read(tmp_path)
