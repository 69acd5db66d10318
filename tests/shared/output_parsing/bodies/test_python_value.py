from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.output_parsing.bodies.python_value import copy_python
from baton.output_parsing.calls import Malformed
from baton.output_parsing.source import Source

TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False, width=16),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=12,
).filter(lambda value: "inf" not in repr(value))


def copied(text: str, size: int = 10**9) -> str:
    source, parts = Source(), list[str]()
    reader = copy_python(source, parts.append)
    for start in range(0, len(text), size):
        source.append(text[start : start + size])
        if next(reader, True):
            return "".join(parts)
    source.ended = True
    assert next(reader, True), "it waits behind the end"
    return "".join(parts)


@settings(max_examples=200, deadline=None)
@given(VALUES, st.integers(1, 5))
def test_a_literal_becomes_the_same_json(value: object, size: int) -> None:
    text = repr(value)
    assert copied(text) == copied(text, size)
    assert json.loads(copied(text)) == json.loads(json.dumps(value))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="{}[]()\"',:\\u0x1-.TrueN \n", max_size=30), st.integers(1, 3))
def test_what_comes_out_is_json_or_nothing_does(text: str, size: int) -> None:
    try:
        whole = copied(text)
    except Malformed:
        with pytest.raises(Malformed):
            copied(text, size)
        return
    json.loads(whole)
    assert copied(text, size) == whole


def test_strings_have_pythons_escapes() -> None:
    for text in (
        r"'\n\t\\\'\" \x41 \u00e9 \U0001f600 \101 \0 \d \a'",
        "''",
        '""',
        '"it\'s"',
        "'''a\n'b'\"c'''",
        '"""x"""',
        r"'a\
b'",
    ):
        source = Source()
        source.append(text)
        assert json.loads(copied(text)) == ast.literal_eval(text.replace(r"\d", r"\\d")), text
        assert copied(text, 1) == copied(text)


def test_pairs_of_surrogates_are_one_character() -> None:
    assert json.loads(copied(r"'\ud83d\ude00'")) == "\U0001f600"


def test_numbers_of_python() -> None:
    for text, number in (
        *(("+5", "5"), ("1_000", "1000"), ("0x1F", "31"), ("1.", "1.0"), ("-.5", "-0.5")),
        *(("1e5", "1e5"), ("12345678901234567890", "12345678901234567890"), ("-0b11", "-3")),
    ):
        assert copied(f"[{text}]") == f"[{number}]"


def test_keys_become_strings() -> None:
    assert json.loads(copied("{1: 2, None: 3, 'a': 4}")) == {"1": 2, "null": 3, "a": 4}


def test_trailing_commas() -> None:
    assert copied("[1, {'a': (2,), },]") == '[1, {"a": [2]}]'


UNFINISHED = ("", "[", "'a", "'a\\", "[1", "{'a'", "{'a':", "Tru", '"""a"')


def test_what_is_no_literal() -> None:
    for text in ("[x]", "[1+1]", "[f()]", "{1, 2}", "[1 2]", "[,]", "['\\xzz']", "[1j]", "[007]"):
        with pytest.raises(Malformed):
            copied(text)
    for text in UNFINISHED:
        source = Source()
        source.append(text)
        assert not next(copy_python(source, len), True), "it waits for more"
        with pytest.raises(Malformed):
            copied(text)
