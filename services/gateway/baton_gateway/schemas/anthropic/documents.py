"""Converts blocks of type `document` to text parts of a chat.

https://docs.anthropic.com/en/docs/build-with-claude/citations
"""

from __future__ import annotations

from typing import Any

from baton_gateway.http.errors import wrong_type
from baton_gateway.schemas.field_access import field_of, kind_of, object_of, string_of
from baton_gateway.schemas.unsupported import unsupported

_ADVICE = "Send its text, as a source of type 'text'."
_REFUSED = dict.fromkeys(("base64", "file", "url"), _ADVICE)


def document_text(block: dict[str, Any], param: str) -> dict[str, Any]:
    """Return a document as text, after its title and context. Raises `InvalidRequest` for anything
    but plain text, and for citations, which are not generated."""
    citations = block.get("citations")
    if isinstance(citations, dict) and citations.get("enabled"):
        raise unsupported(f"{param}.citations", "Leave it out: no citations are made.")
    lines = [text for name in ("title", "context") if (text := _optional(block, name, param))]
    source = object_of(field_of(block, "source", param), f"{param}.source")
    return {"type": "text", "text": "\n".join([*lines, _source(source, f"{param}.source")])}


def _source(source: dict[str, Any], param: str) -> str:
    if kind_of(source, param, ("text", "content"), _REFUSED) == "text":
        return string_of(source, "data", param)
    content = field_of(source, "content", param)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(f"{param}.content", "a string or an array", content)
    return "\n".join(_chunk(block, f"{param}.content[{i}]") for i, block in enumerate(content))


def _chunk(block: object, param: str) -> str:
    kind_of(block, param, ("text",), {})
    return string_of(object_of(block, param), "text", param)


def _optional(block: dict[str, Any], name: str, param: str) -> str:
    return "" if block.get(name) is None else string_of(block, name, param)
