"""Malformed tools are reported by field; a choice names one of them."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.tools import check_choice, check_tools, chosen


def _tool(name: str = "f", **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


GOOD = _tool(
    type="object",
    properties={"a": {"type": ["string", "null"], "pattern": "^x+$"}, "b": {"type": "array"}},
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
