"""Namespaces of tools: functions of several origins, whose names may be the same.

A model sees one list of functions. One of a namespace has its own name there, or
`NAMESPACE__NAME` where two have the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolAddress:
    """What a client calls a tool."""

    name: str
    namespace: str | None = None


class ToolNames:
    """The tools of a request as the model sees them."""

    def __init__(self, tools: list[Tool]) -> None:
        """`tools`: as `response_tools` returns them."""
        placed = [one for tool in tools for one in _placed(tool)]
        often = Counter(address.name for _, address in placed)
        self._seen: dict[ToolAddress, str] = {}
        self.tools: list[Tool] = []
        """Functions and custom tools, under the names that the model sees."""
        self._origins: dict[str, tuple[ToolAddress, str]] = {}
        for tool, address in placed:
            shared = address.namespace is not None and often[address.name] > 1
            seen = _qualified(address) if shared else address.name
            self._seen[address] = seen
            self._origins[seen] = (address, tool["type"])
            self.tools.append(tool | {"name": seen})

    def seen(self, item: Mapping[str, Any], name: str) -> str:
        """The model's name of the tool that an item or a choice of a client means."""
        namespace = item.get("namespace")
        address = ToolAddress(name, namespace if isinstance(namespace, str) else None)
        return self._seen.get(address, _qualified(address))

    def address(self, seen: str) -> ToolAddress:
        """The client's name of what the model calls; one that is not among the tools is itself."""
        return self._origins.get(seen, (ToolAddress(seen), ""))[0]

    def is_custom(self, seen: str) -> bool:
        """Whether the model calls a custom tool."""
        return self._origins.get(seen, (None, ""))[1] == "custom"


def _placed(tool: Tool) -> list[tuple[Tool, ToolAddress]]:
    if tool["type"] != "namespace":
        return [(tool, ToolAddress(tool["name"]))]
    return [(one, ToolAddress(one["name"], tool["name"])) for one in tool["tools"]]


def _qualified(address: ToolAddress) -> str:
    if address.namespace is None:
        return address.name
    return f"{address.namespace}__{address.name}"
