"""Schemas as the engine is given them."""

from __future__ import annotations

from typing import Any

import pytest

from baton.structured_output.json_formats import FORMATS
from baton.structured_output.json_schema import SchemaError, rewrite, walk

pytestmark = pytest.mark.row("F10.01")
DATED, DATE = {"format": "date"}, {"pattern": FORMATS["date"]}
NEEDS_B = {"required": ["b"]}


def absent_or(name: str, then: Any) -> dict[str, Any]:
    return {"anyOf": [{"properties": {name: False}}, then]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"minLength": 2.0, "maxItems": 3}, {"minLength": 2, "maxItems": 3}),
        ({"minLength": 2.5}, {"minLength": 2.5}),
        ({"format": "date"}, DATE),
        ({"format": "uuid"}, {"format": "uuid"}),
        ({"format": "date", "pattern": "^2"}, {"pattern": "^2", "allOf": [DATE]}),
        (
            {"format": "date", "pattern": "^2", "allOf": [{"minLength": 1.0}]},
            {"pattern": "^2", "allOf": [{"minLength": 1}, DATE]},
        ),
        ({"$id": "http://x/y", "type": "null"}, {"type": "null"}),
        ({"const": {"format": "date", "$ref": "#"}}, {"const": {"format": "date", "$ref": "#"}}),
        ({"enum": [{"minLength": 1.0}]}, {"enum": [{"minLength": 1.0}]}),
        ({"unevaluatedProperties": False}, {"additionalProperties": False}),
        (
            {"unevaluatedProperties": DATED, "additionalProperties": True},
            {"additionalProperties": True},
        ),
        ({"unevaluatedItems": DATED, "prefixItems": [{}]}, {"items": DATE, "prefixItems": [{}]}),
        ({"unevaluatedItems": True, "anyOf": [{}]}, {"anyOf": [{}]}),
        ({"dependentRequired": {"a": ["b"]}}, {"allOf": [absent_or("a", {"required": ["b"]})]}),
        (
            {"dependentSchemas": {"a": DATED}, "allOf": [{}]},
            {"allOf": [{}, absent_or("a", DATE)]},
        ),
        (
            {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"a": DATED, "c": True}},
            {"allOf": [absent_or("a", {"allOf": [NEEDS_B, DATE]}), absent_or("c", True)]},
        ),
        ({"patternProperties": {"[[]": {}}}, {"patternProperties": {r"[\[]": {}}}),
    ],
)  # fmt: skip
def test_rewritten(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert rewrite(before) == after


@pytest.mark.parametrize(
    "around",
    [
        lambda s: {"properties": {"a/b~c": s}},
        lambda s: {"patternProperties": {"a": s}},
        lambda s: {"$defs": {"a": s}},
        lambda s: {"definitions": {"a": s}},
        lambda s: {"anyOf": [True, s]},
        lambda s: {"oneOf": [s]},
        lambda s: {"allOf": [s]},
        lambda s: {"prefixItems": [s]},
        lambda s: {"items": s},
        lambda s: {"items": [s]},
        lambda s: {"additionalProperties": s},
        lambda s: {"items": {"anyOf": [s]}},
    ],
)
def test_wherever_it_stands(around: Any) -> None:
    assert rewrite(around({"format": "date"})) == around(DATE)
    places = {pointer: found for pointer, found in walk(around({"type": "null"}))}
    (pointer,) = (p for p, found in places.items() if found == {"type": "null"})
    recursive = {**around({"type": "null"}), "not a keyword": {}}
    recursive.setdefault("$ref", "#" + pointer.replace("~", "%7E"))
    assert rewrite(recursive) == recursive


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"pattern": r"\b"}, r"'pattern': .*'\\b'"),
        ({"items": {"patternProperties": {"(?i)a": {}}}}, "'patternProperties': flags"),
        ({"patternProperties": {"A": {}, r"\x41": {}}}, "are the same pattern"),
        ({"$ref": "#/enum/0", "enum": [{}]}, r"'\$ref': there is no schema at '#/enum/0'"),
        ({"$ref": "#/default", "default": {}}, "there is no schema"),
        ({"$ref": "#anchor"}, "there is no schema"),
        ({"unevaluatedItems": False, "allOf": [{}]}, "'unevaluatedItems' beside 'allOf'"),
        ({"unevaluatedProperties": {}, "$ref": "#"}, r"beside '\$ref'"),
    ],
)
def test_refused(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        rewrite(schema)
