"""Supported JSON schemas and their limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from baton.errors import InvalidRequest
from baton.protocol import Grammar
from baton.structured_output.json_formats import FORMATS
from baton.structured_output.llguidance import Problem
from baton.structured_output.llguidance import problem as trial
from baton_gateway.structured_output.json_schema import (
    ANNOTATIONS,
    HONOURED,
    MAX_DEPTH,
    MAX_OPTIONAL,
    check_schema,
    repeats_too_often,
)

pytestmark = pytest.mark.row("F10.01")


def problem(schema: dict[str, Any]) -> str | None:
    """The code of the refusal; empty for one without a code, None when there is no refusal."""
    try:
        check_schema(schema, "response_format", "r")
    except InvalidRequest as error:
        return error.code or ""
    return None


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


def test_every_keyword_of_the_draft_is_honoured_or_refused() -> None:
    """Nothing of draft 2020-12 passes by accident: what is let through is one of two lists."""
    draft = jsonschema.Draft202012Validator
    known = HONOURED | ANNOTATIONS
    for keyword in draft.VALIDATORS:
        assert (problem({keyword: "#"}) is None) == (keyword in known), keyword
    assert not HONOURED & ANNOTATIONS
    assert set(draft.VALIDATORS) - known == {
        "$dynamicRef", "contains", "if", "not", "propertyNames", "uniqueItems",
    }  # fmt: skip


@pytest.mark.parametrize(
    "inside",
    [
        {"properties": {"a": {"not": {}}}},
        {"$defs": {"a": {"not": {}}}},
        {"items": {"not": {}}},
        {"anyOf": [{}, {"not": {}}]},
        {"additionalProperties": {"not": {}}},
        {"patternProperties": {"a": {"prefixItems": [{"not": {}}]}}},
    ],
)
def test_refused_wherever_it_stands(inside: dict[str, Any]) -> None:
    assert problem(inside) == ""


def test_names_and_values_are_no_keywords() -> None:
    values = {"const": {"not": 1}, "enum": [{"if": 1}]}
    assert problem({"properties": {"not": {}, "if": {}}, **values}) is None


def test_limits() -> None:
    assert problem(nested(MAX_DEPTH)) is None
    assert problem(nested(MAX_DEPTH + 1)) == "grammar_too_complex"
    many = {f"p{i}": {} for i in range(MAX_OPTIONAL + 1)}
    assert problem({"properties": many, "required": ["p0"]}) is None
    assert problem({"properties": many}) == "grammar_too_complex"
    assert problem({"minLength": 10_000}) is None
    assert problem({"minLength": 10_001}) == "grammar_too_complex"


@pytest.mark.parametrize("value", [5, None, "x", [], {}, True, [None], {"a": None}, 1e300])
@pytest.mark.parametrize("keyword", sorted(HONOURED))
def test_values_of_any_type_are_no_crash(keyword: str, value: object) -> None:
    assert problem({keyword: value}) in (None, "", "grammar_too_complex")


@pytest.mark.parametrize(
    ("pattern", "too_often"),
    [
        ("a{512}", False), ("a{513}", True), ("a{1,513}", True), ("a{513,}", True),
        ("a{,600}", True),
        ("(a{500}){500}", False), ("((a{500}){500}){500}", True), ("a{}{x}", False),
        ("a{" + "9" * 1000 + "}", True),
    ],
)  # fmt: skip
def test_repetitions(pattern: str, too_often: bool) -> None:
    assert repeats_too_often(pattern) == too_often


def test_the_page_says_the_same() -> None:
    """docs/api/structured-output.md lists every keyword, and what happens to it."""
    page = (Path(__file__).parents[3] / "docs/api/structured-output.md").read_text()
    told = dict(re.findall(r"^\| `([$\w]+)` \| (.*) \|$", page, re.MULTILINE))
    for keyword in HONOURED:
        assert told.pop(keyword).startswith("honoured"), keyword
    for keyword in ANNOTATIONS:
        assert told.pop(keyword).startswith("says"), keyword
    assert "at the root" in told.pop("$id")
    assert problem({"$id": "http://a"}) is None and problem({"items": {"$id": "http://a"}}) == ""
    refused = {keyword for keyword, what in told.items() if what == "refused"}
    assert all(problem({keyword: {}}) == "" for keyword in refused)
    assert refused >= set(jsonschema.Draft202012Validator.VALIDATORS) - HONOURED
    found = re.findall(r"^\| `([a-z0-9-]+)` \| ", page.partition("| format |")[2], re.MULTILINE)
    formats = [name for name in found if compiles({"format": name}) is None]
    assert formats == found and len(found) == 10 and set(FORMATS) <= set(found)


def compiles(schema: dict[str, Any]) -> Problem | None:
    return trial(Grammar("json_schema", json.dumps(schema)))
