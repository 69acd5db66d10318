"""Tools and choices as those of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.responses.namespaces import ToolNames
from baton_gateway.schemas.responses.tools import (
    chat_choice,
    chat_tools,
    demanded_grammar,
    response_tools,
)
from baton_gateway.schemas.tools import check_tools

F = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
G = {"type": "custom", "name": "g", "description": "d"}
SPACE = {"type": "namespace", "name": "n", "description": "d"}
REGEX = {"type": "grammar", "syntax": "regex", "definition": "a|b"}


def test_tools_are_functions_of_a_chat() -> None:
    tools = response_tools([F, G, G | {"name": "h", "format": REGEX}])
    function, free, grammar = (tool["function"] for tool in check_tools(chat_tools(tools)))
    assert function == {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert free["description"] == "d" and free["parameters"]["required"] == ["input"]
    assert free["parameters"]["properties"]["input"] == {"type": "string"}
    assert grammar["parameters"]["properties"]["input"]["pattern"] == "^(?:a|b)$"
    assert tools[1]["format"] == {"type": "text"} and tools[0]["description"] is None


def test_choices_are_those_of_a_chat() -> None:
    tools = response_tools([F, G])
    named = {"type": "function", "function": {"name": "g"}}
    names = ToolNames(tools)
    assert chat_choice("required", names) == ("required", tools)
    assert chat_choice({"type": "custom", "name": "g"}, names) == (named, tools)
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}],
    }
    assert chat_choice(allowed, names) == ("auto", tools[:1])


LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
NAMED = {"type": "function", "function": {"name": "g"}}


def test_a_lark_grammar_is_for_a_demanded_call() -> None:
    tools = response_tools([F, G | {"format": LARK}])
    for choice, able in ((NAMED, tools), ("required", tools[1:])):
        assert demanded_grammar(choice, able) == tools[1]
    named = {"type": "function", "function": {"name": "f"}}
    for choice, able in (("none", tools), (named, tools), ("auto", tools[:1])):
        assert demanded_grammar(choice, able) is None
    for choice in ("auto", "required"):
        with pytest.raises(InvalidRequest, match="must be demanded") as caught:
            demanded_grammar(choice, tools)
        assert caught.value.param == "tools[1].format.syntax"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "web_search"}, "tools[0].type"),
        ({"type": "mcp", "server_label": "x"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].name"),
        (SPACE | {"tools": []}, "tools[0].tools"),
        (SPACE | {"tools": [SPACE]}, "tools[0].tools[0].type"),
        (F | {"description": 5}, "tools[0].description"),
        (G | {"format": {"type": "json"}}, "tools[0].format.type"),
        (G | {"format": REGEX | {"syntax": "gbnf"}}, "tools[0].format.syntax"),
        (G | {"format": REGEX | {"definition": "(?=a)"}}, "tools[0].format.definition"),
    ],
)
def test_tools_are_refused_by_name(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        response_tools([tool])
    assert caught.value.param == param


@pytest.mark.parametrize("choice", ["some", {"type": "file_search"}, {"type": "function"}, 5])
def test_unknown_choices_are_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_choice(choice, ToolNames([]))
    assert (caught.value.param or "").startswith("tool_choice")
