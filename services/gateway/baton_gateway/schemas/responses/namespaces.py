"""Namespaces of tools: functions of several origins, whose names may be equal.

The model gets one list of functions. A function of a namespace has its own name there, or
`NAMESPACE__NAME` if two have the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolAddress:
    """The client's name of a tool."""

    name: str
    namespace: str | None = None


class ToolNames:
    """The tools of a request as the model gets them."""

    def __init__(self, tools: list[Tool]) -> None:
        """`tools`: in the form of `response_tools`."""
        placed = [part for tool in tools for part in _placed(tool)]
        often = Counter(address.name for _, address in placed)
        self._model_names: dict[ToolAddress, str] = {}
        self.tools: list[Tool] = []
        """Functions and custom tools, under their model names."""
        self._origins: dict[str, tuple[ToolAddress, str]] = {}
        for tool, address in placed:
            shared = address.namespace is not None and often[address.name] > 1
            model_name = _qualified(address) if shared else address.name
            self._model_names[address] = model_name
            self._origins[model_name] = (address, tool["type"])
            self.tools.append(tool | {"name": model_name})

    def model_name(self, item: Mapping[str, Any], name: str) -> str:
        """The model name of the tool that an item or a tool choice refers to."""
        namespace = item.get("namespace")
        address = ToolAddress(name, namespace if isinstance(namespace, str) else None)
        return self._model_names.get(address, _qualified(address))

    def address(self, model_name: str) -> ToolAddress:
        """The client's name of a tool by its model name; an unknown name is its own address."""
        return self._origins.get(model_name, (ToolAddress(model_name), ""))[0]

    def is_custom(self, model_name: str) -> bool:
        """Whether the tool is a custom tool."""
        return self._origins.get(model_name, (None, ""))[1] == "custom"


def _placed(tool: Tool) -> list[tuple[Tool, ToolAddress]]:
    if tool["type"] != "namespace":
        return [(tool, ToolAddress(tool["name"]))]
    return [(part, ToolAddress(part["name"], tool["name"])) for part in tool["tools"]]


def _qualified(address: ToolAddress) -> str:
    if address.namespace is None:
        return address.name
    return f"{address.namespace}__{address.name}"
