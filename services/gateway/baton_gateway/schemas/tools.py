"""Validates tools and the tool choice of a chat request."""

from __future__ import annotations

import re
from typing import Any

from baton_gateway.http.body import check_free_form
from baton_gateway.http.errors import array_too_long, invalid, missing, shorten, wrong_type

MAX_TOOLS = 128
_MODES = ("none", "auto", "required")
_MAX_NAME = 64
_NAME = re.compile(r"(?!__)[A-Za-z0-9_-]+")
_UNICODE_CLASS = re.compile(r"\\[pP]\{\^?[A-Za-z_=]{1,64}\}")
_GROUP_NAME = re.compile(r"\(\?<(?![=!])")
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def check_tools(
    value: object, *, most: int = MAX_TOOLS, longest_name: int = _MAX_NAME
) -> list[dict[str, Any]]:
    """Validate the tools: valid, unique names; parameters are an object schema."""
    if not isinstance(value, list):
        raise wrong_type("tools", "an array", value)
    if len(value) > most:
        raise array_too_long("tools", most)
    names: set[str] = set()
    for i, tool in enumerate(value):
        name = _tool(tool, f"tools[{i}]", longest_name)
        if name in names:
            raise invalid(f"tools[{i}].function.name", f"The tool name '{name}' appears twice.")
        names.add(name)
    return value


def _tool(tool: object, param: str, longest_name: int) -> str:
    if not isinstance(tool, dict):
        raise wrong_type(param, "an object", tool)
    if tool.get("type") != "function":
        raise invalid(f"{param}.type", "Invalid value. Supported values are: 'function'.")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise missing(f"{param}.function")
    name = _name(function.get("name"), f"{param}.function.name", longest_name)
    _check_parameters(function, name, f"{param}.function.parameters")
    return name


def _name(value: object, param: str, longest: int) -> str:
    if isinstance(value, str) and len(value) <= longest and _NAME.fullmatch(value):
        return value
    raise invalid(param, f"Invalid '{param}': expected 1 to {longest} letters, digits, '_' or '-'.")


def _check_parameters(function: dict[str, Any], name: str, param: str) -> None:
    parameters = function.get("parameters", {})
    if not isinstance(parameters, dict):
        raise invalid(param, f"Invalid '{param}': expected a JSON schema object.")
    check_free_form(parameters, param)
    problem = _problem(parameters)
    if problem:
        raise invalid(
            param,
            f"Invalid schema for function '{name}': {problem}.",
            "invalid_function_parameters",
        )


def _problem(schema: dict[str, Any]) -> str:
    """Return the first problem of a JSON schema; empty when it is plausible."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [] if kind is None else [kind]
    for one in kinds:
        if not isinstance(one, str) or one not in _TYPES:
            return f"{shorten(one)} is not a type"
    pattern = schema.get("pattern")
    if pattern is not None and not _is_regex(pattern):
        return f"{shorten(pattern)} is not a regular expression"
    properties = schema.get("properties", {})
    nested = properties.values() if isinstance(properties, dict) else ()
    inner = [s for s in (*nested, schema.get("items")) if isinstance(s, dict)]
    return next((problem for problem in map(_problem, inner) if problem), "")


def _is_regex(pattern: object) -> bool:
    """Whether a pattern is plausible. JSON schemas have the syntax of JavaScript, some of which
    Python's lacks: classes of Unicode and names of groups."""
    if not isinstance(pattern, str):
        return False
    try:
        re.compile(_GROUP_NAME.sub("(?P<", _UNICODE_CLASS.sub(r"\\w", pattern)))
    except re.error:
        return False
    return True


def chosen(choice: Any, tools: list[dict[str, Any]]) -> str:
    """Return a checked choice as "none", "auto", "required" or the name of a function."""
    if not tools:
        return "none"
    name: str = "auto" if choice is None else choice
    return name if isinstance(choice, str | None) else choice["function"]["name"]


def only_allowed(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the tools and the mode of a choice of type `allowed_tools`; any other
    body unchanged.

    https://platform.openai.com/docs/api-reference/chat/create, `tool_choice`
    """
    choice = body.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return body
    param = "tool_choice.allowed_tools"
    allowed = choice.get("allowed_tools")
    if not isinstance(allowed, dict):
        raise missing(param)
    if allowed.get("mode") not in ("auto", "required"):
        raise invalid(f"{param}.mode", "Supported values are: 'auto', 'required'.")
    allowed_tools = allowed.get("tools")
    if not isinstance(allowed_tools, list):
        raise wrong_type(f"{param}.tools", "an array", allowed_tools)
    tools = check_tools(body.get("tools") or [])
    for entry in allowed_tools:
        _check_named(entry, tools, f"{param}.tools")
    able = {entry["function"]["name"] for entry in allowed_tools}
    selected = [tool for tool in tools if tool["function"]["name"] in able]
    return body | {"tools": selected, "tool_choice": allowed["mode"]}


def check_choice(choice: object, tools: list[dict[str, Any]]) -> None:
    """Raise `InvalidRequest` for an unknown choice, and for one of no tool."""
    if choice is not None and choice not in _MODES:
        _check_named(choice, tools, "tool_choice")
        _check_demandable(choice)
    if choice == "required" and not tools:
        raise invalid("tool_choice", "Invalid 'tool_choice': it needs 'tools'.")


def _check_named(choice: object, tools: list[dict[str, Any]], param: str) -> None:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in [tool["function"]["name"] for tool in tools]:
        raise invalid(
            param, f"Invalid value for '{param}': {shorten(choice)} names none of the tools."
        )


def _check_demandable(choice: Any) -> None:
    name = choice["function"]["name"]
    if name in _MODES:
        raise invalid(
            "tool_choice",
            f"Unsupported value: a function named '{name}' cannot be demanded by name, since this "
            "is a value of 'tool_choice' itself. Rename the function.",
            "unsupported_value",
        )
