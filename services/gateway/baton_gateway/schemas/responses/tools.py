"""Converts tools and the tool choice to those of a chat.

A custom tool is a function with one text argument, `input`.
"""

from __future__ import annotations

from typing import Any

from baton_gateway.http.errors import invalid, shorten, wrong_type
from baton_gateway.schemas.field_access import array_of, kind_of, object_of, string_of
from baton_gateway.schemas.responses.namespaces import Tool, ToolNames
from baton_gateway.structured_output.request import check_regex

_MODES = ("none", "auto", "required")
_HOSTED = dict.fromkeys(
    (
        "web_search",
        "web_search_preview",
        "file_search",
        "computer_use_preview",
        "computer",
        "code_interpreter",
        "image_generation",
        "local_shell",
        "shell",
        "mcp",
        "apply_patch",
        "tool_search",
    ),
    "This server runs no tools: describe it as a tool of type 'function', and run it yourself.",
)
_KINDS = ("function", "custom")


def response_tools(value: object) -> list[Tool]:
    """Return tools in the form that a response repeats. Raises `InvalidRequest` for hosted ones."""
    if not isinstance(value, list):
        raise wrong_type("tools", "an array", value)
    return [_top(tool, f"tools[{i}]") for i, tool in enumerate(value)]


def _top(value: object, param: str) -> Tool:
    if kind_of(value, param, (*_KINDS, "namespace"), _HOSTED) != "namespace":
        return _tool(value, param)
    space = object_of(value, param)
    tools = array_of(space.get("tools"), f"{param}.tools")
    return {
        "type": "namespace",
        "name": string_of(space, "name", param),
        "description": string_of(space, "description", param),
        "tools": [_tool(tool, f"{param}.tools[{i}]") for i, tool in enumerate(tools)],
    }


def _tool(value: object, param: str) -> Tool:
    kind = kind_of(value, param, _KINDS, _HOSTED)
    tool = object_of(value, param)
    name, description = string_of(tool, "name", param), tool.get("description")
    if not isinstance(description, str | None):
        raise wrong_type(f"{param}.description", "a string", description)
    if kind == "custom":
        form = _format(tool.get("format"), f"{param}.format")
        return {"type": "custom", "name": name, "description": description, "format": form}
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict"),
    }


def _format(value: object, param: str) -> dict[str, Any]:
    if value is None:
        return {"type": "text"}
    if kind_of(value, param, ("text", "grammar"), {}) == "text":
        return {"type": "text"}
    form = object_of(value, param)
    syntax, definition = (string_of(form, name, param) for name in ("syntax", "definition"))
    if syntax not in ("lark", "regex"):
        raise invalid(
            f"{param}.syntax",
            f"Invalid '{param}.syntax': {shorten(syntax)}. Supported values are: 'lark', 'regex'.",
        )
    if syntax == "regex":
        check_regex(definition, f"{param}.definition")
    return {"type": "grammar", "syntax": syntax, "definition": definition}


def chat_tools(tools: list[Tool]) -> list[Tool]:
    """Convert the tools of `ToolNames`; `check_tools` of the chat checks names and schemas."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: Tool) -> dict[str, Any]:
    function = {"name": tool["name"], "description": tool["description"]}
    if tool["type"] == "custom":
        function |= {"parameters": _input_schema(tool["format"]), "strict": True}
    else:
        function |= {"parameters": tool["parameters"], "strict": tool["strict"]}
    return {name: value for name, value in function.items() if value is not None}


def _input_schema(form: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "string"}
    if form.get("syntax") == "regex":
        text["pattern"] = f"^(?:{form['definition']})$"
    return {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }


def chat_choice(choice: Any, names: ToolNames) -> tuple[Any, list[Tool]]:
    """Return the equivalent `tool_choice` of a chat, and the tools that may be called."""
    tools = names.tools
    if isinstance(choice, str):
        return _mode(choice, "tool_choice"), tools
    kind = kind_of(choice, "tool_choice", (*_KINDS, "allowed_tools"), _HOSTED)
    if kind != "allowed_tools":
        name = names.model_name(choice, string_of(choice, "name", "tool_choice"))
        return {"type": "function", "function": {"name": name}}, tools
    allowed = choice.get("tools")
    if not isinstance(allowed, list):
        raise wrong_type("tool_choice.tools", "an array", allowed)
    able = [_allowed(one, f"tool_choice.tools[{i}]", names) for i, one in enumerate(allowed)]
    mode = _mode(string_of(choice, "mode", "tool_choice"), "tool_choice.mode")
    return mode, [tool for tool in tools if tool["name"] in able]


def demanded_grammar(choice: Any, tools: list[Tool]) -> Tool | None:
    """Return the tool with a Lark grammar that the answer must call; None if there is none.

    Its input is then the complete answer. Raises `InvalidRequest` if the model could choose: such a
    grammar cannot be enforced in the middle of an answer.
    """
    if choice == "none":
        return None
    name = choice["function"]["name"] if isinstance(choice, dict) else None
    able = [tool for tool in tools if name in (None, tool["name"])]
    for i, tool in enumerate(tools):
        if tool not in able or tool.get("format", {}).get("syntax") != "lark":
            continue
        if choice != "auto" and len(able) == 1:
            return tool
        raise invalid(
            f"tools[{i}].format.syntax",
            "A tool with a Lark grammar must be demanded: send tool_choice "
            f'{{"type": "custom", "name": "{tool["name"]}"}}, or a grammar of the syntax '
            "'regex'.",
            "unsupported_value",
        )
    return None


def _allowed(value: object, param: str, names: ToolNames) -> str:
    kind_of(value, param, _KINDS, _HOSTED)
    tool = object_of(value, param)
    return names.model_name(tool, string_of(tool, "name", param))


def _mode(value: str, param: str) -> str:
    if value not in _MODES:
        raise invalid(
            param,
            f"Invalid '{param}': {shorten(value)}. Supported values are: 'none', 'auto', "
            "'required'.",
        )
    return value
