"""Merging as a GGUF file says it, beside the tokenizers that such files were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.structured_output import bpe_merges
from baton_worker.structured_output.bpe_merges import Merges
from baton_worker.structured_output.vocabulary import Vocabulary

TEXTS = [
    '{"name": "Ada Lovelace", "age": 36, "favourite_hobbies": ["long walks"], "is_admin": true}',
    "yes, please",
    "2024-05-06T10:00:00Z",
    "don't stop  now\n\n  ok",
    "é ü 日本語 😀",
    '"},\n    {"',
]


def fake(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    found = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    monkeypatch.setattr(bpe_merges, "read_metadata", lambda path: found)


@pytest.mark.slow
def test_of_a_real_file(smollm2: Path) -> None:
    from baton_tokenizer.vocabulary.load import load

    merge = Merges.read(smollm2, Vocabulary.read(smollm2, 49152))
    tokenizer = load(smollm2).tokenizer
    for text in TEXTS:
        assert merge(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_pairs_in_the_order_of_the_list_and_within_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = (b"a", b"b", b"c", b" ", b"bc", b"ab", b" a", b"a ")
    fake(monkeypatch, model="gpt2", merges=["b c", "a b", "Ġ a", "a Ġ"])
    merge = Merges.read(Path("x"), Vocabulary(pieces))
    assert [pieces[i] for i in merge("abc")] == [b"a", b"bc"]
    assert [pieces[i] for i in merge("aba")] == [b"ab", b"a"]
    assert [pieces[i] for i in merge("a a")] == [b"a", b" a"]
    assert merge("ax") == [0], "what has no id ends it"


def test_the_highest_score_first_and_bytes_of_unknown_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = (b"a", b"b", b"c", b"bc", b"ab", b"a", b"\xc3", b"\xa9")
    types, scores = [1, 1, 1, 1, 1, 6, 6, 6], [0.0, 0.0, 0.0, -2.0, -1.0, 0.0, 0.0, 0.0]
    fake(monkeypatch, model="llama", scores=scores, token_type=types)
    merge = Merges.read(Path("x"), Vocabulary(pieces))
    assert merge("abc") == [4, 2]
    assert merge("bca") == [3, 0], "a byte that is a character is that character"
    assert merge("é") == [6, 7]


def test_other_kinds_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, model="t5")
    with pytest.raises(ModelError, match="'t5'"):
        Merges.read(Path("x"), Vocabulary((b"a",)))
