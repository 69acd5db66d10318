"""Reads a checkpoint's `response_template`: its own declaration of its output format.

The key of `tokenizer_config.json` that transformers introduced lists the fields of a message, with
the delimiters and the content type of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from baton.output_parsing.bodies.json_calls import JsonCalls
from baton.output_parsing.reasoning_format import ReasoningFormat
from baton.output_parsing.tool_format import ToolFormat

_NAME = "response_template"


def literals(template: Mapping[str, Any], field: str) -> str:
    """Text of a field's declaration without regular expression syntax, for matching fingerprints of
    known formats."""
    return "\n".join(map(_unescaped, _strings(_field(template, field))))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def _unescaped(pattern: str) -> str:
    """A regular expression without classes and backslashes."""
    return re.sub(r"\\(?:[sSwWdDb][*+?]*|(.))", r"\1", pattern)


def declared_tools(template: Mapping[str, Any]) -> ToolFormat | None:
    """The tool format of JSON calls between literal delimiters; None for any other."""
    field = _field(template, "tool_calls")
    openers = _texts(field.get("open"))
    if not openers or field.get("content") != "json":
        return None
    return ToolFormat(_NAME, openers, JsonCalls(_texts(field.get("close"))))


def declared_reasoning(template: Mapping[str, Any]) -> ReasoningFormat | None:
    """The reasoning format with literal delimiters; None for any other."""
    field = _field(template, "thinking")
    openers, closers = _texts(field.get("open")), _texts(field.get("close"))
    if not openers or not closers:
        return None
    return ReasoningFormat(_NAME, openers, closers, opened_by_template="perhaps")


def _field(template: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    fields = template.get("fields")
    field = fields.get(name) if isinstance(fields, Mapping) else None
    return field if isinstance(field, Mapping) else {}


def _texts(value: Any) -> tuple[str, ...]:
    """A literal, or several."""
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(text for text in texts if isinstance(text, str) and text)
