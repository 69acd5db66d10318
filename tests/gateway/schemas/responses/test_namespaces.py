"""Tools of namespaces: what the model calls them, and what the client does."""

from __future__ import annotations

from typing import Any

from baton_gateway.schemas.responses.namespaces import ToolAddress, ToolNames
from baton_gateway.schemas.responses.tools import response_tools


def space(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "d", "tools": list(tools)}


def test_a_name_is_qualified_where_two_are_the_same() -> None:
    search, new = ({"type": "function", "name": name} for name in ("search", "new"))
    patch = {"type": "custom", "name": "patch"}
    given = [search, space("mail", search, patch), space("web", search, new)]
    names = ToolNames(response_tools(given))
    assert [t["name"] for t in names.tools] == [
        "search",
        "mail__search",
        "patch",
        "web__search",
        "new",
    ]
    assert names.address("mail__search") == ToolAddress("search", "mail")
    assert names.address("new") == ToolAddress("new", "web")
    assert names.address("search") == names.address("search") == ToolAddress("search")
    assert names.is_custom("patch") and not names.is_custom("search")
    for tool in names.tools:
        address = names.address(tool["name"])
        assert names.model_name({"namespace": address.namespace}, address.name) == tool["name"]


def test_a_call_of_a_tool_that_is_gone_keeps_its_namespace() -> None:
    names = ToolNames([])
    assert names.model_name({"namespace": "mail"}, "search") == "mail__search"
    assert names.model_name({}, "search") == "search"
    assert names.address("odd") == ToolAddress("odd") and not names.is_custom("odd")
