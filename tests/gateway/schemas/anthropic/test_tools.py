"""Tools of the Messages API as those of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.anthropic.tools import chat_choice, chat_tools

SCHEMA = {"type": "object"}


def test_a_tool_becomes_a_function() -> None:
    tools = [{"type": "custom", "name": "f", "description": "d", "input_schema": SCHEMA}]
    function = {"name": "f", "parameters": SCHEMA, "description": "d"}
    assert chat_tools(tools) == [{"type": "function", "function": function}]
    strict = [tools[0] | {"strict": True}]
    assert chat_tools(strict) == [{"type": "function", "function": function | {"strict": True}}]


@pytest.mark.parametrize(
    ("choice", "same"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_choices(choice: dict[str, Any], same: Any) -> None:
    parallel = "disable_parallel_tool_use" not in choice
    assert chat_choice(choice) == {"tool_choice": same, "parallel_tool_calls": parallel}


def test_errors_name_the_field() -> None:
    for tool, param in (
        ({"type": "bash_20250124", "name": "bash"}, "tools[0].type"),
        ({"input_schema": SCHEMA}, "tools[0].name"),
        ({"name": "f"}, "tools[0].input_schema"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            chat_tools([tool])
        assert caught.value.param == param
    with pytest.raises(InvalidRequest, match=r"'tool_choice\.name'"):
        chat_choice({"type": "tool"})
    with pytest.raises(InvalidRequest, match="expected a boolean"):
        chat_choice({"type": "auto", "disable_parallel_tool_use": 1})
