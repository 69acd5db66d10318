"""How text is cut into words, by the name in a GGUF file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import ModelError
from baton_tokenizer.vocabulary.pretokenizers import CUTS, cut, pre_tokenizer
from baton_tokenizer.vocabulary.tokenizer_json import compile_spec
from tests.fakes.vocabularies import byte_spec

SAMPLE = "I'LL pay 1234.50  in\n\n May!"


def words(name: str, text: str) -> list[str]:
    tokenizer = compile_spec(byte_spec() | {"pre_tokenizer": pre_tokenizer(cut(name).patterns)})
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in pieces]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", "I|'|LL| pay| 1234|.|50| | in|\n\n| May|!"),
        ("smollm", "I|'|LL| pay| |1|2|3|4|.|5|0| | in|\n\n| May|!"),
        ("qwen2", "I|'LL| pay| |1|2|3|4|.|5|0| | in|\n\n| May|!"),
        ("llama-bpe", "I|'LL| pay| |123|4|.|50| | in|\n\n| May|!"),
        ("gpt-4o", "I'LL| pay| |123|4|.|50| | in|\n\n| May|!"),
        ("tekken", "I|'LL| pay| |1|2|3|4|.|5|0| | in|\n\n| May|!"),
        ("afmoe", "I|'LL| pay| |1|234|.|50| | in|\n\n| May|!"),
    ],
)
def test_words(name: str, expected: str) -> None:
    assert words(name, SAMPLE) == expected.split("|")


def test_every_entry_compiles_and_loses_nothing() -> None:
    text = "Grüße, 漢字 カナ 1234567 don't\r\n\t_x$ é "
    for name in CUTS:
        json.dumps(pre_tokenizer(cut(name).patterns))
        tokenizer = compile_spec(byte_spec() | {"pre_tokenizer": pre_tokenizer(cut(name).patterns)})
        assert tokenizer.decode(tokenizer.encode(text).ids) == text, name


@given(st.text(max_size=60))
def test_round_trip_of_any_text(text: str) -> None:
    tokenizer = compile_spec(byte_spec())
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"'martian' is not known. Known: .*qwen2"):
        cut("martian")
