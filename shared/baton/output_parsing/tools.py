"""The tools of a request, as far as parsing calls needs them.

Formats with plain text values need the parameters' JSON schemas to determine types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Types = frozenset[str]
"""Allowed JSON schema types of a value; empty if the schema does not restrict them."""
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
"""Maximum depth of references and unions."""


class Tools:
    """Names and parameters of a request's tools; invalid entries count as tools without
    parameters."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._schemas = dict(_schemas(tools or ()))
        self._types: dict[tuple[str, str], Types] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def types(self, name: str, key: str) -> Types:
        """Allowed types of argument `key` of function `name`."""
        types = self._types.get((name, key))
        if types is None:
            types = self._types[name, key] = self._resolve(name, key)
        return types

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
    types = schema.get("type")
    yield from [types] if isinstance(types, str) else filter(_is_text, _list(types))
    if schema.get("nullable") is True:
        yield "null"
    if types is None:
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
