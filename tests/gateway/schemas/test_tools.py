"""Malformed tools are reported by field; a choice names one of them."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.tools import check_choice, check_tools, chosen, only_allowed


def _tool(name: str = "f", **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


GOOD = _tool(
    type="object",
    properties={"a": {"type": ["string", "null"], "pattern": "^x+$"}, "b": {"type": "array"}}
    | {"c": {"pattern": r"^(?<name>[\p{L}_]+)\P{Script=Greek}$"}},
)


def test_good_tools() -> None:
    bare = {"type": "function", "function": {"name": "g"}}
    assert check_tools([GOOD, bare]) == [GOOD, bare]
    check_choice("none", [GOOD])
    for choice in (None, "none", "auto"):
        check_choice(choice, [])


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "s"},
        {"type": 5},
        {"type": ["object", "s"]},
        {"properties": {"a": {"type": "s"}}},
        {"items": {"properties": {"a": {"pattern": "["}}}},
        {"properties": {"a": {"pattern": 5}}},
    ],
)
def test_bad_schemas_at_any_depth(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_tools([_tool(**parameters)])
    assert caught.value.code == "invalid_function_parameters"
    assert caught.value.param == "tools[0].function.parameters"


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (None, "auto"),
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "function": {"name": "f"}}, "f"),
    ],
)
def test_a_choice_has_a_name(choice: Any, name: str) -> None:
    check_choice(choice, [GOOD])
    assert chosen(choice, [GOOD]) == name and chosen(None, []) == "none"


@pytest.mark.parametrize("choice", ["any", {}, {"function": {"name": "g"}}, 5, []])
def test_choice_of_nothing(choice: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_choice(choice, [GOOD])
    assert (caught.value.code, caught.value.param) == ("invalid_value", "tool_choice")


def test_a_function_with_the_name_of_a_mode_is_not_demanded_by_it() -> None:
    tool = _tool("auto", type="object")
    check_choice("required", [tool])
    with pytest.raises(InvalidRequest, match="Rename the function"):
        check_choice({"type": "function", "function": {"name": "auto"}}, [tool])


def _allowing(*names: str, mode: str = "auto", **fields: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    return {"tools": [GOOD, _tool("g")], "tool_choice": choice} | fields


def test_only_the_allowed_tools_are_left() -> None:
    kept = only_allowed(_allowing("g", mode="required", model="m"))
    assert kept == {"tools": [_tool("g")], "tool_choice": "required", "model": "m"}
    for choice in ("auto", None, {"type": "function", "function": {"name": "f"}}):
        assert only_allowed({"tool_choice": choice}) == {"tool_choice": choice}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (_allowing("h"), "tool_choice.allowed_tools.tools"),
        (_allowing("f", mode="none"), "tool_choice.allowed_tools.mode"),
        (_allowing("f", tools=None), "tool_choice.allowed_tools.tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
def test_allowed_tools_are_checked(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        only_allowed(body)
    assert caught.value.param == param
