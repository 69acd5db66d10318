"""Syntax of one call of a format, as an expression of its grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from baton.output_parsing.grammars.lark import Lark, either, listing, literal
from baton.output_parsing.tools import Tools, Types
from baton.structured_output.json_schema import SchemaError, rewrite

_NOTES = {"type", "description", "title", "default", "examples", "deprecated", "$comment"}
"""Keywords that do not restrict a text beyond its type."""
_SCALARS = {"string", "integer", "number", "boolean", "null"}
_UNIONS = {"anyOf", "oneOf", "nullable"}


@dataclass(frozen=True)
class Function:
    """One tool."""

    name: str
    parameters: Mapping[str, Any]
    tools: Tools

    @property
    def schema(self) -> dict[str, Any]:
        """The arguments as an object without additional properties, if it declares any."""
        closed = {"additionalProperties": False} if self.properties or not self.parameters else {}
        return rewrite({"type": "object", "properties": {}} | closed | dict(self.parameters))

    @property
    def properties(self) -> Mapping[str, Any]:
        """Schemas of the arguments."""
        properties = self.parameters.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    @property
    def required(self) -> frozenset[str]:
        """Names of required arguments."""
        return frozenset(self.parameters.get("required") or ())

    def types(self, key: str) -> Types:
        """Types of an argument, as determined by the parser."""
        return self.tools.types(self.name, key)

    def value(self, key: str) -> dict[str, Any]:
        """The schema of one argument."""
        shared = {k: v for k, v in self.parameters.items() if k in ("$defs", "definitions")}
        return rewrite(dict(self.properties[key]) | shared)

    def listing(self, items: Mapping[str, str], separator: str) -> str:
        """Expression of an argument list: the required ones, then any of the others."""
        required = [item for key, item in items.items() if key in self.required]
        optional = [item for key, item in items.items() if key not in self.required]
        return listing(required, optional, separator)


class Syntax(Protocol):
    """Writes one call."""

    def call(self, lark: Lark, function: Function) -> str:
        """Expression of a call of a function. Raises `SchemaError` if the format cannot guarantee
        its schema."""


@dataclass(frozen=True, slots=True)
class JsonObject:
    """`BEFORE{"name": NAME, "arguments": {...}}AFTER`"""

    before: tuple[str, ...] = ()
    """Alternatives."""
    after: str = ""
    keys: tuple[str, str] = ("name", "arguments")
    extra: str = ""
    """Pattern of members before the name."""

    def call(self, lark: Lark, function: Function) -> str:
        """As in `Syntax`."""
        name, arguments = map(json.dumps, self.keys)
        extra = lark.pattern(self.extra) if self.extra else ""
        before = either(map(literal, self.before)) if self.before else ""
        head = f"{name}: {json.dumps(function.name)}, {arguments}: "
        parts = (before, literal("{"), extra, literal(head), lark.json(function.schema))
        return " ".join([*parts, literal("}" + self.after)])


@dataclass(frozen=True, slots=True)
class KeyedObject:
    """`{NAME: {...}}`"""

    def call(self, lark: Lark, function: Function) -> str:
        """As in `Syntax`."""
        head = literal("{" + json.dumps(function.name) + ": ")
        return f"{head} {lark.json(function.schema)} {literal('}')}"


@dataclass(frozen=True, slots=True)
class NameThenJson:
    """`BEFORE NAME SEPARATOR {...} AFTER`"""

    before: str
    separator: str
    after: str = ""
    number: str = ""
    """Pattern between the name and the separator."""

    def call(self, lark: Lark, function: Function) -> str:
        """As in `Syntax`."""
        number = lark.pattern(self.number) if self.number else ""
        parts = (literal(self.before + function.name), number, literal(self.separator))
        return " ".join([*parts, lark.json(function.schema), literal(self.after)])


@dataclass(frozen=True, slots=True)
class Tags:
    """A function whose arguments are tags with plain text; NAME, KEY and STRING (true or false) are
    substituted."""

    function: tuple[str, str]
    parameter: tuple[str, str]

    def call(self, lark: Lark, function: Function) -> str:
        """As in `Syntax`."""
        items = {key: self._item(lark, function, key) for key in function.properties}
        begin = literal(self.function[0].replace("NAME", function.name))
        return f"{begin} {function.listing(items, '')} {literal(self.function[1])}"

    def _item(self, lark: Lark, function: Function, key: str) -> str:
        textual = str(function.types(key) == {"string"}).lower()
        begin = literal(self.parameter[0].replace("KEY", key).replace("STRING", textual))
        return lark.rule(f"{begin} {bare(lark, function, key, self.parameter[1])}")


def bare(lark: Lark, function: Function, key: str, end: str) -> str:
    """A value as plain text in the form that the parser reads, and its end."""
    schema, types = function.properties[key], function.types(key)
    if types and "string" not in types:
        return f"{lark.json(function.value(key))} {literal(end)}"
    if choices := _choices(schema):
        return either(literal(_text(choice) + end) for choice in choices)
    if types == {"string"}:
        _check(schema, key, _NOTES | {"minLength", "maxLength"})
        return lark.text(end, schema.get("minLength", 0), schema.get("maxLength"))
    _check(schema, key, _NOTES | _UNIONS)
    if not types <= _SCALARS:
        raise SchemaError(f"'{key}' may be a string or an array or object, which look alike here")
    return lark.text(end)


def _text(choice: Any) -> str:
    return choice if isinstance(choice, str) else json.dumps(choice)


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    return list(schema.get("enum") or ([schema["const"]] if "const" in schema else []))


def _check(schema: Mapping[str, Any], key: str, allowed: set[str]) -> None:
    for keyword in schema:
        if keyword not in allowed:
            raise SchemaError(f"'{keyword}' of '{key}' cannot be honoured in the text of a call")


@dataclass(frozen=True, slots=True)
class PythonCall:
    """`NAME(KEY=VALUE, ...)` with values in JSON."""

    def call(self, lark: Lark, function: Function) -> str:
        """As in `Syntax`."""
        items = {
            key: lark.rule(f"{literal(key + '=')} {lark.json(function.value(key))}")
            for key in function.properties
        }
        begin = literal(function.name + "(")
        return f"{begin} {function.listing(items, ', ')} {literal(')')}"


@dataclass(frozen=True, slots=True)
class EscapedCall:
    """`BEFORE call:NAME{KEY:VALUE,...} AFTER` with strings between escape tokens."""

    before: str
    escape: str
    after: str

    def call(self, lark: Lark, function: Function) -> str:
        """As in `Syntax`."""
        begin = literal(f"{self.before}call:{function.name}")
        return f"{begin} {self._object(lark, function.parameters)} {literal(self.after)}"

    def _object(self, lark: Lark, schema: Mapping[str, Any]) -> str:
        _check(schema, "object", _NOTES | {"properties", "required", "additionalProperties"})
        items = {
            key: lark.rule(f"{literal(key + ':')} {self._value(lark, key, value)}")
            for key, value in schema.get("properties", {}).items()
        }
        needed = schema.get("required") or ()
        required = [item for key, item in items.items() if key in needed]
        optional = [item for key, item in items.items() if key not in needed]
        return f"{literal('{')} {listing(required, optional, ',')} {literal('}')}"

    def _value(self, lark: Lark, key: str, schema: Mapping[str, Any]) -> str:
        kind = schema.get("type")
        if choices := _choices(schema):
            return either(
                literal(self.escape + c + self.escape if isinstance(c, str) else json.dumps(c))
                for c in choices
            )
        if kind == "object":
            return self._object(lark, schema)
        if kind == "array":
            _check(schema, key, _NOTES | {"items"})
            item = lark.rule(self._value(lark, key, schema.get("items", {"type": "string"})))
            return f"{literal('[')} ({item} ({literal(',')} {item})*)? {literal(']')}"
        if kind == "string":
            _check(schema, key, _NOTES | {"minLength", "maxLength"})
            text = lark.text(self.escape, schema.get("minLength", 0), schema.get("maxLength"))
            return f"{literal(self.escape)} {text}"
        if kind is None:
            _check(schema, key, _NOTES)
            bare_value = lark.json({"type": sorted(_SCALARS - {"string"})})
            return either((self._value(lark, key, {"type": "string"}), bare_value))
        kinds = frozenset(kind if isinstance(kind, list) else [kind])
        if kinds and kinds <= _SCALARS - {"string"}:
            return lark.json(rewrite(dict(schema)))
        raise SchemaError(f"the type of '{key}' cannot be honoured in the text of a call")
