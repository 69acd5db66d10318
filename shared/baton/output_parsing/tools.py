"""Tools: the functions that a request offers, as far as reading a call needs them.

Formats that write values as plain text leave their types to the JSON schema of the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Types = frozenset[str]
"""JSON schema types that a value may have; empty where the schema does not say."""
_NAMES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}
_DEPTH = 8
"""Nested references and unions that are followed."""


class Tools:
    """Names and parameters of a request's tools; bad entries count as tools without parameters."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._schemas = dict(_schemas(tools or ()))
        self._types: dict[tuple[str, str], Types] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def types(self, name: str, key: str) -> Types:
        """Types that argument `key` of function `name` may have."""
        found = self._types.get((name, key))
        if found is None:
            found = self._types[name, key] = self._resolve(name, key)
        return found

    def _resolve(self, name: str, key: str) -> Types:
        root = self._schemas.get(name, {})
        properties = root.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return frozenset(_types(schema, root, _DEPTH))


def _schemas(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schema = function.get("parameters")
            yield function["name"], schema if isinstance(schema, Mapping) else {}


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or not depth:
        return
    said = schema.get("type")
    yield from [said] if isinstance(said, str) else filter(_is_text, _list(said))
    if schema.get("nullable") is True:
        yield "null"
    if said is None:
        values = _list(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
        yield from (_NAMES[type(value)] for value in values if type(value) in _NAMES)
        yield from ["object"] if "properties" in schema else ()
    for keyword in ("anyOf", "oneOf", "allOf"):
        for branch in _list(schema.get(keyword)):
            yield from _types(branch, root, depth - 1)
    if "$ref" in schema:
        yield from _types(_target(str(schema["$ref"]), root), root, depth - 1)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    place: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if step else place
        if not isinstance(place, Mapping):
            return None
    return place
