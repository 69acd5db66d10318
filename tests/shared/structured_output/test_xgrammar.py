"""Grammars that xgrammar enforces exactly, and refusal of all others."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest
import xgrammar as xgr

from baton.errors import InvalidRequest
from baton.protocol import Grammar
from baton.structured_output.llguidance import GrammarError
from baton.structured_output.xgrammar import (
    Bytes,
    compiled,
    narrow,
    problem,
)
from baton_gateway.structured_output.request import constraint
from tests.fakes.grammar_cases import schema, spellings, suite

COMPILER = Bytes().compiler


class Reader:
    """Tells which texts are complete outputs of one grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self._compiled = compiled(COMPILER, grammar)

    def accepts(self, text: str) -> bool:
        matcher = xgr.GrammarMatcher(self._compiled)
        return bool(matcher.accept_string(text) and matcher.is_completed())

    def accepts_value(self, value: Any) -> bool:
        return any(self.accepts(text) for text in islice(spellings(value), 200))


def test_the_official_suite() -> None:
    """What is not refused is honoured: every valid instance, and no invalid one."""
    found: Counter[str] = Counter()
    for case in suite():
        if case.file == "format":  # Those say that a format may be ignored. Here none is.
            continue
        try:
            one = constraint({"structured_outputs": {"json": case.schema}})
            assert one is not None
            reader = Reader(one.grammar)
        except (InvalidRequest, GrammarError):
            found["refused"] += 1
            continue
        for description, instance, valid in case.tests:
            assert reader.accepts_value(instance) == valid, (case.name, description)
        found["honoured"] += 1
    assert found["honoured"] >= 90


@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": -3, "maximum": 150},
        {"minimum": 7},
        {"maximum": -12},
        {"exclusiveMinimum": -5, "exclusiveMaximum": 33},
        {"minimum": 0, "exclusiveMaximum": 100},
    ],
)
def test_integers_within_bounds(bounds: dict[str, int]) -> None:
    reader = Reader(schema({"type": "integer"} | bounds))
    for number in range(-160, 320):
        inside = bounds.get("minimum", -999) <= number <= bounds.get("maximum", 999)
        inside &= number > bounds.get("exclusiveMinimum", -999)
        inside &= number < bounds.get("exclusiveMaximum", 999)
        assert reader.accepts(str(number)) == inside
    assert not any(map(reader.accepts, ("1.5", "01", "-0", "1e1")))


NESTED = {
    "$defs": {"n": {"type": "object", "properties": {"kids": {"type": "array", "items": {
        "$ref": "#/$defs/n"}, "maxItems": 2}}, "required": ["kids"],
        "additionalProperties": False}},
    "$ref": "#/$defs/n",
}  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        ({"type": "string"}, ['"a"', '"\\n"', '"\\u0041"', '"é😀"'], ['"a\nb"', '"\\x"', '"a"b"']),
        (
            {"pattern": r"^[A-Z]{2}-\d+(x|yz)?$", "type": "string"},
            ['"AB-12"', '"AB-1yz"'],
            ['"AB-"', '"aB-1"', "3"],
        ),
        ({"maxLength": 2}, ['""', '"éé"', "5", "[]"], ['"abc"']),
        ({"type": ["integer", "null"], "minimum": 3}, ["3", "null"], ["2", '"3"']),
        (NESTED, ['{"kids":[]}', '{"kids":[{"kids":[]}]}'], ['{"kids":[{}]}', "{}"]),
    ],
)
def test_texts(wanted: dict[str, Any], good: list[str], bad: list[str]) -> None:
    reader = Reader(schema(wanted))
    assert [text for text in good if not reader.accepts(text)] == []
    assert [text for text in bad if reader.accepts(text)] == []


def test_white_space_is_bounded_or_of_one_kind() -> None:
    wanted = json.dumps({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]})
    free, compact = (Reader(Grammar("json_schema", wanted, c)) for c in (False, True))
    assert free.accepts('{"a" : 1,' + 16 * " " + '"b":2}') and free.accepts('{"a":1}')
    assert not free.accepts('{"a" : 1,' + 17 * " " + '"b":2}')
    assert compact.accepts('{"a": 1, "b": 2}') and not compact.accepts('{"a":1,"b":2}')


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (Grammar("regex", r"^(yes|no)\.$"), ["yes.", "no."], ["yes", "yesx"]),
        (Grammar("regex", r"a.c"), ["abc", "aéc"], ["a\nc"]),
        (Grammar("regex", r"[^x\]]{2}\\"), ["ab\\"], ["x]\\", "ab"]),
        (Grammar("choice", '["yes","é \\"q\\"\\n","😀"]'), ["yes", 'é "q"\n', "😀"], ["ye", "é"]),
        (
            Grammar("grammar", 'root ::= "[" i ("," i)* "]"\ni ::= [a-c]{1,3} | root'),
            ["[a,[b,abc]]"],
            ["[abcd]", "[]"],
        ),
        (Grammar("json_object", ""), ["{}", '{"a": [1, {"b": null}]}'], ["[]", '{"a":1,}']),
    ],
)
def test_other_kinds(grammar: Grammar, good: list[str], bad: list[str]) -> None:
    assert problem(grammar) is None
    reader = Reader(grammar)
    assert [text for text in good if not reader.accepts(text)] == []
    assert [text for text in bad if reader.accepts(text)] == []


@pytest.mark.parametrize(
    "lacking",
    [
        {"allOf": [{"type": "string"}, {"maxLength": 3}]},
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
        {"anyOf": [{"type": "string"}], "maxLength": 3},
        {"$ref": "#/$defs/a", "type": "string", "$defs": {"a": {}}},
        {"type": "string", "format": "date"},
        {"type": "string", "pattern": "a+"},
        {"type": "string", "pattern": "^[^a]$"},
        {"type": "string", "pattern": "^.$"},
        {"type": "string", "pattern": "^[ -~]$"},
        {"type": "string", "pattern": "^a$", "maxLength": 3},
        {"type": "number", "minimum": 3},
        {"type": "integer", "minimum": 0.5},
        {"type": "integer", "multipleOf": 3},
        {"type": "object", "minProperties": 1},
        {"type": "object", "properties": {'"': {}}},
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"a": False}},
        {"type": "array", "uniqueItems": True},
    ],
    ids=str,
)
def test_what_it_lacks_names_both_engines(lacking: dict[str, Any]) -> None:
    found = problem(schema(lacking))
    assert found is not None and found.code == "unsupported_value"
    assert "xgrammar" in found.message and "llguidance" in found.message


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("structural_tag", '{"structures": [], "triggers": []}'),
        Grammar("grammar", 'start: "a"'),
        Grammar("regex", r"\x41"),
        Grammar("regex", r"a(?=b)b"),
        Grammar("regex", r"(?<n>a)"),
        Grammar("regex", r"\Sa"),
        Grammar("regex", r"[^]]"),
        Grammar("regex", "a$b"),
    ],
    ids=str,
)
def test_other_kinds_that_it_lacks(grammar: Grammar) -> None:
    found = problem(grammar)
    assert found is not None and found.code == "unsupported_value"
    assert "xgrammar" in found.message and "llguidance" in found.message


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (schema({"type": "stsring"}), "'type' cannot be stsring"),
        (schema({"anyOf": []}), "'anyOf' must have"),
        (schema({"required": 3}), "'required' is not what it must be"),
        (schema({"type": "string", "minLength": True}), "'minLength' is not what it must be"),
        (schema({"items": 3}), "'items' is not what it must be"),
        (schema({"type": [[]]}), "'type' cannot be"),
        (Grammar("grammar", "root ::= foo"), '"foo" is not defined'),
        (Grammar("grammar", "root ::= ("), "line 1, column 11"),
    ],
)
def test_what_is_wrong_is_said(grammar: Grammar, words: str) -> None:
    found = problem(grammar)
    assert found is not None and found.code == "invalid_value" and words in found.message


def test_annotations_are_dropped() -> None:
    assert narrow({"title": "x", "type": "null", "description": "y"}) == {"type": "null"}
