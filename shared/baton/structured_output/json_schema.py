"""Rewrites JSON schemas for the grammar engine without changing their meaning.

Patterns are translated to the engine's dialect, inexact formats become exact patterns, counts such
as `2.0` become integers, and unsupported keywords become equivalent supported ones. Only schemas
are rewritten, not values such as those of `enum`; so a `$ref` must point to a schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from baton.structured_output.json_formats import FORMATS
from baton.structured_output.regex import PatternError
from baton.structured_output.regex import translate as translate_pattern

COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by name."""
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
"""Keywords that may hold a list of schemas."""
SINGLES = ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
"""Keywords with one schema as their value."""
_UNEVALUATED = {"unevaluatedItems": "items", "unevaluatedProperties": "additionalProperties"}
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "dependentSchemas")
"""Keywords whose schemas apply to the same value."""

Schema = dict[str, Any]


class SchemaError(ValueError):
    """A schema that cannot be enforced; the message names the keyword."""


def rewrite(schema: Schema) -> Schema:
    """Rewrite a schema for the engine. Raises `SchemaError`."""
    places = {pointer for pointer, _ in walk(schema)}
    # `$id` of the root has no effect, since references to other documents are refused.
    rewritten: Schema = _rewrite({k: v for k, v in schema.items() if k != "$id"}, places)
    return rewritten


def walk(schema: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every schema within a schema, itself first, with its JSON pointer."""
    yield pointer, schema
    for path, child in children(schema):
        yield from walk(child, f"{pointer}/" + "/".join(map(_escape, path)))


def children(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the schemas directly within a schema, with the path to each."""
    if not isinstance(schema, dict):
        return
    for keyword in MAPS:
        if isinstance(value := schema.get(keyword), dict):
            yield from (((keyword, name), child) for name, child in value.items())
    for keyword in LISTS:
        if isinstance(value := schema.get(keyword), list):
            yield from (((keyword, str(i)), child) for i, child in enumerate(value))
    for keyword in SINGLES:
        if isinstance(value := schema.get(keyword), dict | bool):
            yield (keyword,), value


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _rewrite(schema: Any, places: set[str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    _check_reference(result.get("$ref"), places)
    for keyword in COUNTS:
        if isinstance(bound := result.get(keyword), float) and bound.is_integer():
            result[keyword] = int(bound)
    for keyword in MAPS:
        if isinstance(value := result.get(keyword), dict):
            names = _names(value) if keyword == "patternProperties" else list(value)
            values = [_rewrite(child, places) for child in value.values()]
            result[keyword] = dict(zip(names, values, strict=True))
    for keyword in LISTS:
        if isinstance(value := result.get(keyword), list):
            result[keyword] = [_rewrite(child, places) for child in value]
    for keyword in SINGLES:
        if isinstance(value := result.get(keyword), dict):
            result[keyword] = _rewrite(value, places)
    return _strings(_dependent(_unevaluated(result)))


def _unevaluated(schema: Schema) -> Schema:
    """Replace unevaluated* by additional*, equivalent without in-place keywords. In place."""
    for keyword, same in _UNEVALUATED.items():
        if schema.get(keyword) is True:
            del schema[keyword]
        elif keyword in schema:
            beside = next((other for other in _IN_PLACE if other in schema), None)
            if beside is not None:
                raise SchemaError(f"'{keyword}' beside '{beside}' cannot be honoured here")
            schema.setdefault(same, schema.pop(keyword))
    return schema


def _dependent(schema: Schema) -> Schema:
    """Replace dependent* keywords by "the property is absent, or its condition holds". In place."""
    conditions: Schema = {}
    if isinstance(dependents := schema.get("dependentRequired"), dict):
        del schema["dependentRequired"]
        conditions |= {name: {"required": names} for name, names in dependents.items()}
    if isinstance(dependents := schema.get("dependentSchemas"), dict):
        del schema["dependentSchemas"]
        conditions = {
            name: {"allOf": [conditions[name], consequence]} if name in conditions else consequence
            for name, consequence in (conditions | dependents).items()
        }
    return _add_all_of(
        schema, *({"anyOf": [{"properties": {n: False}}, c]} for n, c in conditions.items())
    )


def _add_all_of(schema: Schema, *others: Schema) -> Schema:
    """Combine a schema and others with `allOf`. In place."""
    if others:
        branches = schema.get("allOf")
        schema["allOf"] = [*(branches if isinstance(branches, list) else ()), *others]
    return schema


def _names(schemas: Schema) -> list[str]:
    names = [_pattern(pattern, "patternProperties") for pattern in schemas]
    if len(set(names)) < len(names):
        raise SchemaError("two of the 'patternProperties' are the same pattern")
    return names


def _strings(schema: Schema) -> Schema:
    """Rewrite `pattern` and `format`; both may be present."""
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = _pattern(pattern, "pattern")
    if isinstance(name := schema.get("format"), str) and name in FORMATS:
        del schema["format"]
        exact = {"pattern": FORMATS[name]}
        return _add_all_of(schema, exact) if "pattern" in schema else schema | exact
    return schema


def _pattern(pattern: str, keyword: str) -> str:
    try:
        return translate_pattern(pattern)
    except PatternError as error:
        raise SchemaError(f"'{keyword}': {error}") from error


def _check_reference(reference: Any, places: set[str]) -> None:
    if isinstance(reference, str) and reference.startswith("#"):
        pointer = unquote(reference[1:])
        if pointer not in places:
            raise SchemaError(f"'$ref': there is no schema at '{reference[:64]}'")
