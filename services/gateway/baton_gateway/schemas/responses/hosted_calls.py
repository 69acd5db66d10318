"""Calls of OpenAI's hosted tools in the history of a conversation, as calls of functions.

Such an item holds a call and its result. This server runs no hosted tool, but what they found
belongs to the conversation. Images are left out: a call of a function has none.

https://platform.openai.com/docs/guides/tools
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from baton_gateway.schemas.field_access import string_of

_TOOLS = {
    "code_interpreter_call": ("code_interpreter", "code", "outputs"),
    "file_search_call": ("file_search", "queries", "results"),
    "image_generation_call": ("image_generation", "revised_prompt", "error"),
    "web_search_call": ("web_search", "action", "results"),
}
"""Type of an item -> name of the tool, field of what it was asked, field of what it found."""
_MCP = "mcp_call"
HOSTED_CALLS = (*_TOOLS, _MCP)
"""Types of items that hold a call and its result."""
WITHOUT_TEXT = ("mcp_approval_request", "mcp_approval_response", "mcp_list_tools")
"""Types of items that tell a model nothing: lists of tools that are not here, and approvals of
calls, which are items of their own."""


class HostedCall(NamedTuple):
    """A call of a hosted tool."""

    name: str
    arguments: str
    """JSON object."""
    result: str


def hosted_call(item: Mapping[str, Any], param: str) -> HostedCall:
    """Return the call and the result of an item of `HOSTED_CALLS`. Raises `InvalidRequest`."""
    if item["type"] == _MCP:
        name, arguments = string_of(item, "name", param), string_of(item, "arguments", param)
        output = item.get("output")
        result = output if isinstance(output, str) else json_fields(item, "status", "error")
        return HostedCall(name, arguments, result)
    name, asked, found = _TOOLS[item["type"]]
    shown = {**item, found: _without_images(item.get(found))}
    return HostedCall(name, json_fields(item, asked), json_fields(shown, "status", found))


def json_fields(item: Mapping[str, Any], *names: str) -> str:
    """Return the fields of an item that are not null, as a JSON object."""
    fields = {name: item[name] for name in names if item.get(name) is not None}
    return msgspec.json.encode(fields).decode()


def _without_images(found: Any) -> Any:
    if not isinstance(found, list):
        return found
    return [part for part in found if not isinstance(part, dict) or part.get("type") != "image"]
