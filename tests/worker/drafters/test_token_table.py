"""Checkpoints with the same tokens, and with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.drafters.token_table import difference, token_table


def checkpoint(folder: Path, vocab: Any, **added: int) -> Path:
    folder.mkdir()
    tokens = [{"id": token, "content": name} for name, token in added.items()]
    data = {"model": {"vocab": vocab}, "added_tokens": tokens}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


@pytest.mark.row("F08.01")
def test_tokens_are_compared_by_name_and_padding_is_not(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one", {"a": 0, "b": 1}, end=2)
    unigram = checkpoint(tmp_path / "unigram", [["a", -1.0], ["b", -2.0]], end=2)
    assert token_table(one) == token_table(unigram) == {0: "a", 1: "b", 2: "end"}
    assert difference(one, 3, unigram, 64) == ""
    other = checkpoint(tmp_path / "other", {"a": 0, "c": 1}, end=2)
    assert difference(one, 3, other, 3) == "its token 1 is 'b' and not 'c'"
    short = checkpoint(tmp_path / "short", {"a": 0, "b": 1})
    assert "3 tokens and not 2" in difference(one, 3, short, 3)
    bare = tmp_path / "bare"
    bare.mkdir()
    assert difference(bare, 3, one, 3) == ""
    assert difference(bare, 3, one, 4) == "it has 3 tokens and not 4"
    (bare / "tokenizer.json").write_text('{"model": {"vocab": 3}}')
    with pytest.raises(ModelError, match="that it cannot have"):
        token_table(bare)


@pytest.mark.row("F08.01")
def test_the_table_of_a_gguf_file(smollm2: Path) -> None:
    table = token_table(smollm2)
    assert len(table) == 49152 and table[0] == "<|endoftext|>"
