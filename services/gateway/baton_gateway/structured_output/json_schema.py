"""Checks that a JSON schema uses only keywords that are enforced; others are rejected.

Follows draft 2020-12, https://json-schema.org/draft/2020-12/json-schema-validation. Problems that
only the grammar engine can detect, such as overlapping `oneOf` branches, are reported when it
compiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from baton.errors import InvalidRequest
from baton.structured_output.json_schema import COUNTS, children
from baton_gateway.http.errors import shorten

MAX_DEPTH = 32
_MAX_NESTING = 2 * MAX_DEPTH + 8
"""Nesting limit in JSON levels: each schema level has a `properties` object of its own."""
MAX_PROPERTIES = 5000
MAX_OPTIONAL = 256
"""Most optional properties of one object; the grammar may continue with any of them."""
MAX_ENUM = 1000
MAX_COUNT = 10_000
"""Largest bound for lengths and numbers of items or properties."""
MAX_PATTERN = 1024
MAX_REPEAT = 512
"""Largest bound of a counted repetition in a regular expression."""

HONOURED = frozenset(
    {
        "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "definitions",
        "dependentRequired", "dependentSchemas", "enum",
        "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maxLength",
        "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum",
        "multipleOf", "oneOf", "pattern", "patternProperties", "prefixItems", "properties",
        "required", "type", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
"""Keywords that constrain the output."""
ANNOTATIONS = frozenset(
    {
        "$comment", "$schema", "default", "deprecated", "description", "examples", "readOnly",
        "title", "writeOnly",
    }
)  # fmt: skip
"""Annotation keywords, which do not constrain the output."""
_REPEAT = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def invalid_schema(param: str, problem: str, name: str = "") -> InvalidRequest:
    """Error for an invalid schema, worded like OpenAI's."""
    called = f" '{name}'" if name else ""
    return InvalidRequest(
        f"Invalid schema for {param.partition('.')[0]}{called}: {problem}.", param=param
    )


def complex_grammar(param: str, limit: str) -> InvalidRequest:
    """Error for a constraint that exceeds a limit."""
    return InvalidRequest(f"Invalid '{param}': {limit}.", code="grammar_too_complex", param=param)


def check_schema(schema: dict[str, Any], param: str, name: str) -> None:
    """Raise `InvalidRequest` for a schema that exceeds a limit or uses unsupported keywords."""
    _check_nesting(schema, param)
    level: list[Any] = [schema]
    properties = values = 0
    for _ in range(MAX_DEPTH):
        for one in level:
            if isinstance(one, dict):
                _check_keywords(one, param, name, root=one is schema)
                _check_counts(one, param)
                properties += len(_map(one, "properties"))
                values += len(one["enum"]) if isinstance(one.get("enum"), list) else 0
        level = [child for one in level for _, child in children(one)]
        if properties > MAX_PROPERTIES:
            raise complex_grammar(param, f"the schema has more than {MAX_PROPERTIES} properties")
        if values > MAX_ENUM:
            raise complex_grammar(param, f"the schema has more than {MAX_ENUM} enum values")
        if not level:
            return
    raise complex_grammar(param, f"the schema is nested more than {MAX_DEPTH} levels deep")


def _check_nesting(value: object, param: str) -> None:
    """Check the depth of all values, `enum` and `default` included, before any recursion."""
    level = [value]
    for _ in range(_MAX_NESTING):
        level = [child for item in level for child in _items(item)]
        if not level:
            return
    raise complex_grammar(param, f"the schema is nested more than {MAX_DEPTH} levels deep")


def _items(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _map(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _check_keywords(schema: dict[str, Any], param: str, name: str, *, root: bool) -> None:
    for keyword in schema:
        # `$id` of the root has no effect, since references outside the schema are rejected.
        if (
            keyword not in HONOURED
            and keyword not in ANNOTATIONS
            and not (root and keyword == "$id")
        ):
            problem = f"the keyword '{keyword[:64]}' cannot be honoured here"
            raise invalid_schema(param, problem, name)
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise invalid_schema(param, f"$ref {shorten(reference)} is not within the schema", name)


def _check_counts(schema: dict[str, Any], param: str) -> None:
    for keyword in COUNTS:
        bound = schema.get(keyword, 0)
        if isinstance(bound, int | float) and bound > MAX_COUNT:
            raise complex_grammar(param, f"'{keyword}' is more than {MAX_COUNT}")
    required = schema.get("required")
    properties = _map(schema, "properties")
    optional = len(properties) - len(set(map(str, required)) if isinstance(required, list) else ())
    if optional > MAX_OPTIONAL:
        raise complex_grammar(
            param, f"one object has more than {MAX_OPTIONAL} properties that are not required"
        )
    for pattern in (schema.get("pattern"), *_map(schema, "patternProperties")):
        if isinstance(pattern, str) and (len(pattern) > MAX_PATTERN or repeats_too_often(pattern)):
            raise complex_grammar(param, f"the pattern {shorten(pattern)} is too complex")


def repeats_too_often(pattern: str) -> bool:
    """Return whether the product of all counted repetitions is too large to compile."""
    product = 1
    for match in _REPEAT.finditer(pattern):
        most = max((int(n[:9]) for n in match.groups() if n), default=1)
        if most > MAX_REPEAT:
            return True
        product *= max(1, most)
    return product > MAX_REPEAT**2
