"""Converts tools and the tool choice to those of a chat."""

from __future__ import annotations

from typing import Any

from baton_gateway.http.errors import invalid, missing, shorten, wrong_type

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(value: object) -> list[dict[str, Any]]:
    """Convert tools; `check_tools` of the chat checks names and schemas.

    Raises `InvalidRequest`, for a tool that the server would have to run.
    """
    if not isinstance(value, list):
        raise wrong_type("tools", "an array", value)
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(value)]


def _tool(tool: object, param: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise wrong_type(param, "an object", tool)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise invalid(
            f"{param}.type",
            f"Unsupported '{param}.type': {shorten(kind)}. This server runs no tools: describe it "
            "with 'name', 'description' and 'input_schema', and run it yourself.",
            "unsupported_value",
        )
    for field in ("name", "input_schema"):
        if field not in tool:
            raise missing(f"{param}.{field}")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    if tool.get("strict"):
        function["strict"] = True
    return {"type": "function", "function": function}


def chat_choice(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the chat fields equivalent to `tool_choice`."""
    kind, parallel = choice.get("type"), choice.get("disable_parallel_tool_use", False)
    if not isinstance(parallel, bool):
        name = "tool_choice.disable_parallel_tool_use"
        raise wrong_type(name, "a boolean", parallel)
    fields: dict[str, Any] = {"parallel_tool_calls": not parallel}
    if kind == "tool":
        if not isinstance(choice.get("name"), str):
            raise missing("tool_choice.name")
        choice_of_tool = {"type": "function", "function": {"name": choice["name"]}}
        return fields | {"tool_choice": choice_of_tool}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise invalid(
            "tool_choice.type",
            f"Invalid 'tool_choice.type': {shorten(kind)}. Supported values are: 'auto', 'any', "
            "'tool', 'none'.",
        )
    return fields | {"tool_choice": _CHOICES[kind]}
