"""Metadata of settings: group, advanced, shared."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import Field
from pydantic.fields import FieldInfo

Group: TypeAlias = Literal[
    "model",
    "memory",
    "batching",
    "parallelism",
    "kernels",
    "structured output",
    "network",
    "security",
    "limits",
    "reliability",
    "observability",
]
"""Headings of the help and of the settings page, in their order."""


def setting(
    default: Any, group: Group, *, advanced: bool = False, shared: bool = False, **rules: Any
) -> Any:
    """A pydantic field in a group. Choosing an advanced one needs measurements; a shared one means
    the same in every service that declares it. `...` means no constant default."""
    extra: dict[str, Any] = {"group": group, "advanced": advanced, "shared": shared}
    if default is not ...:
        rules["default"] = default
    return Field(json_schema_extra=extra, **rules)


def trait(field: FieldInfo, name: str) -> Any:
    """ "group", "advanced" or "shared" of a setting; None if it is not declared."""
    extra = field.json_schema_extra
    return extra.get(name) if isinstance(extra, dict) else None
