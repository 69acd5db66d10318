from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.output_parsing.bodies.json_value import copy_value, json_string, single_value
from baton.output_parsing.calls import Malformed
from baton.output_parsing.source import Source

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def copied(text: str, size: int = 10**9) -> tuple[str, list[str]]:
    """(all that was passed on, and in which parts)."""
    source, parts = Source(), list[str]()
    reader = copy_value(source, parts.append)
    for start in range(0, len(text), size):
        source.append(text[start : start + size])
        if next(reader, True):
            return "".join(parts), parts
    source.ended = True
    assert next(reader, True), "it waits behind the end"
    return "".join(parts), parts


def fed(text: str) -> bool:
    """Whether a value is whole before the end of the text is known."""
    source = Source()
    source.append(text)
    return bool(next(copy_value(source, len), True))


@settings(max_examples=200, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.integers(1, 5))
def test_json_is_copied_as_it_is(
    value: object, ascii_only: bool, indent: int | None, size: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert copied(text)[0] == copied(text, size)[0] == text


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='{}[]",:\\ud83e0-1.truefalsn\n ', max_size=40), st.integers(1, 3))
def test_what_comes_out_is_json_or_nothing_does(text: str, size: int) -> None:
    try:
        whole, _ = copied(text)
    except Malformed:
        with pytest.raises(Malformed):
            copied(text, size)
        return
    json.loads(whole)
    assert copied(text, size)[0] == whole


REPAIRS = [
    ('{"a": "x\ny\t\x01"}', {"a": "x\ny\t\x01"}),
    ('["it\\\'s"]', ["it's"]),
    ('{"a": [1, 2, ], }', {"a": [1, 2]}),
    ("[True, False, None]", [True, False, None]),
    ('["\\ud83d\\ude00 \\ud83d"]', ["\U0001f600 \ud83d"]),
    ("[12345678901234567890, 1e400, -0.10]", None),
]


def test_repairs_that_are_certain() -> None:
    for text, meant in REPAIRS:
        assert copied(text)[0] == copied(text, 1)[0]
        if meant is None:
            assert copied(text)[0] == text
        else:
            assert json.loads(copied(text)[0]) == meant


UNREADABLE = [
    *("{a: 1}", "{'a': 1}", '{"a" 1}', '{"a": }', "[1 2]", "[,]", "{,}", "[NaN]"),
    *("[01]", "[+1]", "[1.]", '["\\x41"]', '["\\u12g4"]', "[undefined]", '{"a": 1, "b"}'),
]


def test_what_has_no_certain_reading() -> None:
    for text in UNREADABLE:
        with pytest.raises(Malformed):
            fed(text)


UNFINISHED = [
    "",
    "[",
    '{"a',
    '{"a"',
    '{"a":',
    '{"a": 1',
    '"a\\',
    '"\\ud83d',
    "[tr",
    "[-",
    "[1,",
]


def test_a_text_that_ends_inside() -> None:
    for text in UNFINISHED:
        assert not fed(text), "it waits for more"
        with pytest.raises(Malformed):
            copied(text)


def test_strings_come_as_they_are_made_and_pairs_whole() -> None:
    _, parts = copied('"ab\\ud83d\\ude00c"', 1)
    assert parts == ['"', "a", "b", "\\ud83d\\ude00", "c", '"']


def test_depth_is_no_limit() -> None:
    text = "[" * 50_000 + "]" * 50_000
    assert copied(text)[0] == text


def test_a_text_that_is_one_value() -> None:
    assert single_value(copy_value, "[1,]\n") == "[1]"
    assert single_value(copy_value, "[1] 2") is None and single_value(copy_value, "[1") is None


def test_the_value_of_a_string() -> None:
    source = Source()
    source.append('"a\\n\\u00e9" rest')
    reader = json_string(source)
    with pytest.raises(StopIteration) as stop:
        next(reader)
    assert stop.value.value == "a\né" and source.text[source.position :] == " rest"
